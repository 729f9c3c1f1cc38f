/* Capture of streams into graphs, under the rules of capture, and launches of what was captured. A node is a task with the nodes that it
 * comes after; a launch makes an operation of each. Nodes in a row share a chain of the clocks; an instantiated graph runs once at a time. */
#include "driver.h"

struct node { struct task *task; struct node_set after; int chain; };
struct nodes { struct node *node; int n, n_chains, references; };
struct capture {
    struct nodes *nodes;
    struct stream *origin;
    int mode;
    bool spoilt;
    pthread_t thread;
    struct capture *next;
};
struct graph { struct object object; struct nodes *nodes; };
struct exec { struct object object; struct nodes *nodes; int *chains; struct op *last; };
enum { GLOBAL_MODE, THREAD_MODE, RELAXED_MODE };

static struct capture *captures, *ended; /* those that go on, and those that events may name */
static _Thread_local int mode_of_thread = GLOBAL_MODE;

/* ---- sets of nodes ---- */

void set_copy(struct node_set *to, const struct node_set *from) {
    int *nodes = fresh((size_t)from->n, sizeof *nodes);
    if (from->n)
        memcpy(nodes, from->nodes, sizeof *nodes * (size_t)from->n);
    free(to->nodes);
    *to = (struct node_set){nodes, from->n};
}
static void set_add(struct node_set *to, const struct node_set *from) {
    struct node_set all = {fresh((size_t)(to->n + from->n), sizeof(int)), 0};
    for (int pass = 0; pass < 2; pass++) {
        const struct node_set *s = pass ? from : to;
        for (int i = 0; i < s->n; i++) {
            bool there = false;
            for (int k = 0; k < all.n; k++)
                there |= all.nodes[k] == s->nodes[i];
            if (!there)
                all.nodes[all.n++] = s->nodes[i];
        }
    }
    free(to->nodes);
    *to = all;
}

/* ---- capture ---- */

void capture_spoil(struct capture *c) {
    if (c)
        c->spoilt = true;
}
int capture_forbids(void) {
    if (mode_of_thread == RELAXED_MODE)
        return OK;
    for (struct capture *c = captures; c; c = c->next)
        if (c->mode == GLOBAL_MODE || (c->mode == THREAD_MODE && pthread_equal(c->thread, pthread_self()))) {
            if (!c->spoilt)
                say("a call that may synchronise, while stream %d captures", c->origin->number);
            c->spoilt = true;
            return CAPTURE_UNSUPPORTED;
        }
    return OK;
}
int capture_enqueue(struct stream *s, struct task *task) {
    struct capture *c = s->capture;
    if (c->spoilt) {
        if (task->doing == WORKS)
            task->work.release = NULL; /* the state stays the caller's */
        task_release(task);
        return CAPTURE_INVALIDATED;
    }
    struct nodes *all = c->nodes;
    if (!(all->n & (all->n - 1))) {
        all->node = realloc(all->node, sizeof *all->node * (size_t)(all->n ? 2 * all->n : 1));
        if (!all->node)
            abort();
    }
    struct node *n = &all->node[all->n];
    *n = (struct node){.task = task, .after = s->tips, .chain = -1};
    /* the chain of a node before it, where no other goes on with it */
    for (int i = 0; i < n->after.n && n->chain < 0; i++) {
        int chain = all->node[n->after.nodes[i]].chain;
        bool last = true;
        for (int k = n->after.nodes[i] + 1; k < all->n; k++)
            last &= all->node[k].chain != chain;
        n->chain = last ? chain : -1;
    }
    if (n->chain < 0)
        n->chain = all->n_chains++;
    s->tips = (struct node_set){fresh(1, sizeof(int)), 1};
    s->tips.nodes[0] = all->n++;
    return OK;
}
int capture_record(struct stream *s, struct event *e) {
    op_release(e->op);
    e->op = NULL;
    e->capture = s->capture;
    set_copy(&e->tips, &s->tips);
    return s->capture->spoilt ? CAPTURE_INVALIDATED : OK;
}
static bool goes_on(const struct capture *c) {
    const struct capture *o = captures;
    while (o && o != c)
        o = o->next;
    return o != NULL;
}
const char *capture_name(const struct event *e) {
    return goes_on(e->capture) && e->tips.n ? e->capture->nodes->node[e->tips.nodes[e->tips.n - 1]].task->name : "nothing";
}
int capture_wait(struct stream *s, struct event *e) {
    if (!e->capture) {
        say("cuStreamWaitEvent: stream %d captures, and the event was recorded before", s->number);
        capture_spoil(s->capture);
        return CAPTURE_ISOLATION;
    }
    if (!goes_on(e->capture)) {
        say("cuStreamWaitEvent: the event was recorded in a capture that has ended");
        capture_spoil(s->capture);
        return s->capture ? CAPTURE_ISOLATION : INVALID_VALUE;
    }
    if (s->capture && s->capture != e->capture) {
        capture_spoil(s->capture), capture_spoil(e->capture);
        return CAPTURE_MERGE;
    }
    if (e->capture->spoilt)
        return CAPTURE_INVALIDATED;
    if (!s->capture) {
        s->capture = e->capture;
        set_copy(&s->tips, &e->tips);
    } else {
        set_add(&s->tips, &e->tips);
    }
    return OK;
}
dtm_cu_result fake_StreamBeginCapture(dtm_cu_stream stream, dtm_cu_capture_mode mode) {
    int error = enter();
    struct stream *s = error ? NULL : object_of(stream, STREAM, "cuStreamBeginCapture", false);
    if (!error && (!s || s->capture || mode < GLOBAL_MODE || mode > RELAXED_MODE))
        error = s ? INVALID_VALUE : INVALID_HANDLE;
    if (!error && sim.graphs == 0)
        error = CAPTURE_UNSUPPORTED;
    if (!error) {
        struct capture *c = fresh(1, sizeof *c);
        *c = (struct capture){.nodes = fresh(1, sizeof *c->nodes), .origin = s, .mode = mode, .thread = pthread_self(), .next = captures};
        c->nodes->references = 1;
        captures = c;
        s->capture = c;
        set_copy(&s->tips, &(struct node_set){0});
    }
    unlock();
    return error;
}
static void nodes_release(struct nodes *all) {
    if (--all->references)
        return;
    for (int i = 0; i < all->n; i++) {
        task_release(all->node[i].task);
        free(all->node[i].after.nodes);
    }
    free(all->node), free(all);
}
/* Whether all nodes lead to those of the origin. */
static bool joined(const struct capture *c) {
    const struct nodes *all = c->nodes;
    bool *leads = fresh((size_t)all->n, sizeof *leads), yes = true;
    for (int i = 0; i < c->origin->tips.n; i++)
        leads[c->origin->tips.nodes[i]] = true;
    for (int i = all->n - 1; i >= 0; i--) {
        yes &= leads[i];
        for (int k = 0; k < all->node[i].after.n; k++)
            leads[all->node[i].after.nodes[k]] |= leads[i];
    }
    free(leads);
    return yes;
}
static int end_capture(struct stream *s, struct nodes **out) {
    struct capture *c = s->capture;
    if (!c || c->origin != s) {
        say("cuStreamEndCapture: stream %d %s", s->number, c ? "has joined a capture that another began" : "does not capture");
        capture_spoil(c);
        return c ? CAPTURE_UNMATCHED : INVALID_VALUE;
    }
    if (c->mode != RELAXED_MODE && !pthread_equal(c->thread, pthread_self()))
        return CAPTURE_WRONG_THREAD;
    int error = c->spoilt ? CAPTURE_INVALIDATED : joined(c) ? OK : CAPTURE_UNJOINED;
    if (error == CAPTURE_UNJOINED)
        say("cuStreamEndCapture: what another stream does is not waited for by stream %d", s->number);
    for (struct object *o = sim.objects; o; o = o->next)
        if (o->kind == STREAM && ((struct stream *)(void *)o)->capture == c)
            ((struct stream *)(void *)o)->capture = NULL;
    struct capture **link = &captures;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    c->next = ended, ended = c;
    if (error)
        nodes_release(c->nodes);
    else
        *out = c->nodes;
    return error;
}
dtm_cu_result fake_StreamEndCapture(dtm_cu_stream stream, dtm_cu_graph *out) {
    int error = enter();
    struct stream *s = error ? NULL : object_of(stream, STREAM, "cuStreamEndCapture", false);
    struct nodes *nodes = NULL;
    if (!error)
        error = s ? end_capture(s, &nodes) : INVALID_HANDLE;
    *out = NULL;
    if (!error) {
        struct graph *g = object_new(GRAPH, sizeof *g);
        g->nodes = nodes;
        *out = (dtm_cu_graph)(void *)g;
    }
    unlock();
    return error;
}
dtm_cu_result fake_StreamIsCapturing(dtm_cu_stream stream, dtm_cu_capture_status *out) {
    int error = enter();
    struct stream *s = error ? NULL : object_of(stream, STREAM, "cuStreamIsCapturing", true);
    if (s)
        *out = !s->capture ? 0 : s->capture->spoilt ? 2 : DTM_CU_CAPTURING;
    unlock();
    return error ? error : s ? OK : INVALID_HANDLE;
}
dtm_cu_result fake_ThreadExchangeStreamCaptureMode(dtm_cu_capture_mode *mode) {
    int old = mode_of_thread;
    if (*mode < GLOBAL_MODE || *mode > RELAXED_MODE)
        return INVALID_VALUE;
    mode_of_thread = *mode, *mode = old;
    return OK;
}

/* ---- graphs ---- */

dtm_cu_result fake_GraphInstantiateWithFlags(dtm_cu_graph_exec *out, dtm_cu_graph graph, unsigned long long flags) {
    int error = enter_unsafe();
    struct graph *g = error ? NULL : object_of(graph, GRAPH, "cuGraphInstantiateWithFlags", false);
    if (!error && (!g || flags))
        error = g ? INVALID_VALUE : INVALID_HANDLE;
    if (!error && sim.graphs == 1)
        error = OUT_OF_MEMORY;
    if (!error) {
        struct exec *e = object_new(EXEC, sizeof *e);
        e->nodes = g->nodes;
        e->nodes->references++;
        e->chains = fresh((size_t)e->nodes->n_chains, sizeof *e->chains);
        for (int i = 0; i < e->nodes->n_chains; i++)
            e->chains[i] = chain_new();
        *out = (dtm_cu_graph_exec)(void *)e;
    }
    unlock();
    return error;
}
dtm_cu_result fake_GraphUpload(dtm_cu_graph_exec graph, dtm_cu_stream stream) {
    int error = enter();
    struct exec *e = error ? NULL : object_of(graph, EXEC, "cuGraphUpload", false);
    struct stream *s = error ? NULL : object_of(stream, STREAM, "cuGraphUpload", false);
    unlock();
    return error ? error : e && s ? s->capture ? CAPTURE_UNSUPPORTED : OK : INVALID_HANDLE;
}
static void launch_graph(struct exec *e, struct stream *s) {
    struct nodes *all = e->nodes;
    struct op **ops = fresh((size_t)all->n, sizeof *ops);
    struct op *end = op_new(task_new(NOTHING, s->object.device, "the end of a graph"), s, s->chain);
    op_after(end, s->last), op_after(end, e->last);
    for (int i = 0; i < all->n; i++) { /* in the order of capture, as its work begins */
        const struct node *n = &all->node[i];
        n->task->references++;
        ops[i] = op_new(n->task, s, e->chains[n->chain]);
        ops[i]->references++;
        op_after(ops[i], s->last), op_after(ops[i], e->last);
        for (int k = 0; k < n->after.n; k++)
            op_after(ops[i], ops[n->after.nodes[k]]);
        op_ready(ops[i]);
        op_after(end, ops[i]);
    }
    for (int i = 0; i < all->n; i++)
        op_release(ops[i]);
    free(ops);
    op_release(s->last), op_release(e->last);
    s->last = e->last = end;
    end->references += 2;
    op_ready(end);
}
dtm_cu_result fake_GraphLaunch(dtm_cu_graph_exec graph, dtm_cu_stream stream) {
    int error = enter();
    struct exec *e = error ? NULL : object_of(graph, EXEC, "cuGraphLaunch", false);
    struct stream *s = error ? NULL : object_of(stream, STREAM, "cuGraphLaunch", false);
    if (!error && (!e || !s))
        error = INVALID_HANDLE;
    if (!error && s->capture) {
        say("cuGraphLaunch: into stream %d, which captures", s->number);
        capture_spoil(s->capture);
        error = CAPTURE_UNSUPPORTED;
    }
    if (!error)
        launch_graph(e, s);
    unlock();
    return error;
}
dtm_cu_result fake_GraphExecDestroy(dtm_cu_graph_exec graph) {
    int error = enter();
    struct exec *e = error ? NULL : object_of(graph, EXEC, "cuGraphExecDestroy", false);
    if (e) {
        e->object.dead = true;
        nodes_release(e->nodes);
        op_release(e->last);
        free(e->chains);
    }
    unlock();
    return error ? error : e ? OK : INVALID_HANDLE;
}
dtm_cu_result fake_GraphDestroy(dtm_cu_graph graph) {
    int error = enter();
    struct graph *g = error ? NULL : object_of(graph, GRAPH, "cuGraphDestroy", false);
    if (g) {
        g->object.dead = true;
        nodes_release(g->nodes);
    }
    unlock();
    return error ? error : g ? OK : INVALID_HANDLE;
}
