/* A step as one launch. All steps consist of the same operations (feed.c), so the first runs as it is, the second is captured, and what
 * was captured is launched for it and all later ones. Streams of collectives are forked from `compute` and joined with it by the
 * events that order them. Steps that tell more than others, of which something is read as they go, are run as they are. */
#include "runtime/cuda/device.h"

#include "ir/fault.h"

#include <stdio.h>
#include <stdlib.h>

struct dtm_step_graph {
    dtm_cu_graph_exec exec;
    bool captured, refused;
    int64_t eager; /* steps that were run as they are */
};

void dtm_step_graph_free(dtm_device *device) {
    if (device->graph && device->graph->captured) device->driver->GraphExecDestroy(device->graph->exec);
    free(device->graph);
    device->graph = NULL;
}

static bool may_capture(const dtm_rank *rank) {
    const dtm_options *options = rank->options;
    return !options->no_graph && !rank->verbs && !rank->profile && !rank->trace && !options->check_replicas && !rank->gradients && !rank->device->graph->refused;
}

static void refuse(dtm_rank *rank, const char *what, dtm_cu_result result) {
    const char *name = NULL;
    rank->device->graph->refused = true;
    if (rank->options->quiet) return;
    if (rank->device->driver->GetErrorName(result, &name) != DTM_CU_SUCCESS) name = NULL;
    fprintf(stderr, "note: rank %d: steps are not launched as graphs: %s: %s (error %d)\n", rank->device->rank, what, name ? name : "?", (int)result);
}

/* *captured: there is a graph. Where there is none, for a reason that leaves the streams whole, the step is still to be run. */
static bool capture(dtm_rank *rank, bool (*walk)(dtm_rank *rank, dtm_status *status), dtm_status *status) {
    dtm_device *device = rank->device;
    const dtm_driver *driver = device->driver;
    dtm_cu_graph graph = NULL;
    dtm_cu_result result = driver->StreamBeginCapture(device->compute, DTM_CU_CAPTURE_THREAD);
    if (result) {
        refuse(rank, "a capture", result);
        return true;
    }
    bool walked = walk(rank, status);
    if (dtm_fault(154)) driver->StreamSynchronize(device->compute);
    result = driver->StreamEndCapture(device->compute, &graph);
    if (!walked) {
        if (!result) driver->GraphDestroy(graph);
        return false;
    }
    if (result)
        refuse(rank, "the end of a capture", result);
    else if ((result = driver->GraphInstantiateWithFlags(&device->graph->exec, graph, 0)) != DTM_CU_SUCCESS)
        refuse(rank, "a graph", result);
    else
        device->graph->captured = true;
    if (graph) driver->GraphDestroy(graph);
    if (!device->graph->captured) dtm_feed_again(device);
    return true;
}

static bool run_step(dtm_rank *rank, bool (*walk)(dtm_rank *rank, dtm_status *status), dtm_status *status) {
    dtm_device *device = rank->device;
    dtm_step_graph *g = device->graph;
    bool captures = may_capture(rank);
    if (captures && g->eager && !g->captured && !capture(rank, walk, status)) return false;
    if (captures && g->captured) {
        dtm_cu_result result = device->driver->GraphLaunch(g->exec, device->compute);
        return dtm_device_check(device, result, status, "the graph of step %lld", (long long)rank->step + 1);
    }
    g->eager++;
    return walk(rank, status);
}

bool dtm_device_step(dtm_rank *rank, bool (*walk)(dtm_rank *rank, dtm_status *status), dtm_status *status) {
    dtm_device *device = rank->device;
    if (!device->graph) device->graph = calloc(1, sizeof *device->graph);
    if (!device->graph) return dtm_status_fail(status, "out of memory for the graph of a step");
    bool ok = dtm_feed_begin(rank, status) && run_step(rank, walk, status) && dtm_feed_end(rank, status);
    return ok && (!device->failure.failed || dtm_status_fail(status, "%s", device->failure.message));
}
