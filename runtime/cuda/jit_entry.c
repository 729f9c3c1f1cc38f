#include "runtime/cuda/jit_entry.h"

#include "ir/fault.h"
#include "runtime/sha256.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ENTRY_FORMAT = 1, RUNTIME_ABI = 1 }; /* both are in the key */

/* Without --fmad=false NVRTC joins a product and a sum where it likes, other ones in other kernels: what ranks hold alike, but compute
 * in kernels of other company, would differ in bits. Where templates mean one rounding they say fmaf. */
const char *const dtm_jit_compile_options[DTM_JIT_COMPILE_OPTIONS] = {"-std=c++17", "--fmad=false", "-lineinfo", "--ptxas-options=-v"};

/* ---- identity ---- */

typedef struct text {
    char *data;
    size_t length;
    bool failed;
} text;

/* Each part with its length before it, so that no two lists of parts are the same bytes. */
static void add_part(text *t, const void *data, size_t bytes) {
    uint64_t length = bytes;
    char *grown = t->failed ? NULL : realloc(t->data, t->length + sizeof length + bytes);
    if (!grown) {
        t->failed = true;
        return;
    }
    memcpy(grown + t->length, &length, sizeof length);
    memcpy(grown + t->length + sizeof length, data, bytes);
    t->data = grown;
    t->length += sizeof length + bytes;
}

static void add_number(text *t, uint64_t number) { add_part(t, &number, sizeof number); }

bool dtm_jit_identify(const dtm_jit_source *source, const dtm_cuda_library *nvrtc, dtm_jit_identity *out) {
    return dtm_jit_identify_with(source, dtm_jit_compile_options, DTM_JIT_COMPILE_OPTIONS, nvrtc, out);
}

bool dtm_jit_identify_with(const dtm_jit_source *source, const char *const *options, int n_options, const dtm_cuda_library *nvrtc, dtm_jit_identity *out) {
    text t = {0};
    memset(out, 0, sizeof *out);
    add_number(&t, ENTRY_FORMAT);
    add_number(&t, RUNTIME_ABI);
    add_part(&t, source->name, strlen(source->name));
    add_part(&t, source->text, strlen(source->text));
    if (!dtm_fault(151)) add_part(&t, source->arch, strlen(source->arch));
    for (int i = 0; i < n_options && !dtm_fault(150); i++) add_part(&t, options[i], strlen(options[i]));
    if (!t.failed) dtm_sha256(t.data, t.length, out->what);
    if (nvrtc) {
        add_number(&t, (uint64_t)nvrtc->version);
        if (!dtm_fault(152)) add_part(&t, nvrtc->build_id, strlen(nvrtc->build_id));
        if (!t.failed) dtm_sha256(t.data, t.length, out->key);
    }
    free(t.data);
    return !t.failed;
}

/* ---- the bytes ---- */

typedef struct header {
    char magic[8];
    uint32_t format, n_kernels;
    unsigned char what[32], key[32];
    uint64_t cubin_bytes, ptx_bytes, log_bytes;
} header;
_Static_assert(sizeof(header) == 104 && sizeof(dtm_jit_kernel) % 8 == 0, "the format of entries");

static const char magic[8] = "dtmkern";
enum { DIGEST = 32 };

static uint64_t padded(uint64_t bytes) { return (bytes + 7) & ~(uint64_t)7; }

bool dtm_jit_pack(const dtm_jit_identity *identity, const dtm_jit_parts *parts, unsigned char **out, size_t *bytes, dtm_status *status) {
    header h = {.format = ENTRY_FORMAT, .cubin_bytes = parts->cubin_bytes};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.what, identity->what, sizeof h.what);
    memcpy(h.key, identity->key, sizeof h.key);
    h.ptx_bytes = strlen(parts->ptx) + 1;
    h.log_bytes = strlen(parts->log) + 1;
    h.n_kernels = dtm_jit_read_log(parts->log, NULL, 0);
    uint64_t kernels = h.n_kernels * sizeof(dtm_jit_kernel), all = sizeof h + kernels + padded(h.cubin_bytes) + h.ptx_bytes + h.log_bytes;
    unsigned char *entry = calloc(1, all + DIGEST), *at = entry;
    if (!entry) return dtm_status_fail(status, "out of memory: %llu bytes for a compiled kernel", (unsigned long long)all);
    memcpy(at, &h, sizeof h);
    dtm_jit_read_log(parts->log, (dtm_jit_kernel *)(at += sizeof h), h.n_kernels);
    at += kernels;
    if (h.cubin_bytes) memcpy(at, parts->cubin, h.cubin_bytes);
    memcpy(at += padded(h.cubin_bytes), parts->ptx, h.ptx_bytes);
    memcpy(at + h.ptx_bytes, parts->log, h.log_bytes);
    dtm_sha256(entry, all, entry + all);
    *out = entry;
    *bytes = all + DIGEST;
    return true;
}

/* The digest speaks for every byte, lengths too; the sums are for what was made wrong and signed. */
static bool is_whole(const unsigned char *entry, size_t bytes, header *h) {
    unsigned char digest[DIGEST];
    if (bytes < sizeof *h + DIGEST) return false;
    memcpy(h, entry, sizeof *h);
    if (memcmp(h->magic, magic, sizeof magic) != 0 || h->format != ENTRY_FORMAT) return false;
    uint64_t left = bytes - sizeof *h - DIGEST, kernels = (uint64_t)h->n_kernels * sizeof(dtm_jit_kernel);
    if (kernels > left || h->cubin_bytes > left - kernels) return false;
    left -= kernels;
    if (padded(h->cubin_bytes) > left || h->ptx_bytes > left - padded(h->cubin_bytes)) return false;
    left -= padded(h->cubin_bytes) + h->ptx_bytes;
    if (left != h->log_bytes || !h->ptx_bytes || !h->log_bytes) return false;
    dtm_sha256(entry, bytes - DIGEST, digest);
    return !memcmp(digest, entry + bytes - DIGEST, DIGEST) && !entry[bytes - DIGEST - 1] && !entry[bytes - DIGEST - 1 - h->log_bytes];
}

dtm_jit_code *dtm_jit_open_entry(unsigned char *entry, size_t bytes, const dtm_jit_identity *identity, bool any_compiler) {
    header h;
    if (!is_whole(entry, bytes, &h) || memcmp(h.what, identity->what, sizeof h.what) != 0) return NULL;
    if (!any_compiler && memcmp(h.key, identity->key, sizeof h.key) != 0) return NULL;
    dtm_jit_code *code = calloc(1, sizeof *code);
    if (!code) return NULL;
    code->kernels = (const dtm_jit_kernel *)(entry + sizeof h);
    code->n_kernels = h.n_kernels;
    code->cubin = entry + sizeof h + h.n_kernels * sizeof(dtm_jit_kernel);
    code->cubin_bytes = h.cubin_bytes;
    code->ptx = (const char *)code->cubin + padded(h.cubin_bytes);
    code->ptx_bytes = h.ptx_bytes;
    code->log = code->ptx + h.ptx_bytes;
    code->entry = entry;
    code->entry_bytes = bytes;
    return code;
}

void dtm_jit_code_free(dtm_jit_code *code) {
    if (!code) return;
    free((void *)(uintptr_t)code->entry);
    free(code);
}

/* ---- the folder ---- */

enum { STALE_SECONDS = 3600 };

/* Temporaries of processes that were killed; one that is being written is younger. */
static void remove_stale(int fd) {
    int copy = dup(fd);
    DIR *files = copy < 0 ? NULL : fdopendir(copy);
    if (!files) {
        if (copy >= 0) close(copy);
        return;
    }
    rewinddir(files);
    for (struct dirent *file; (file = readdir(files)) != NULL;) {
        struct stat info;
        size_t length = strlen(file->d_name);
        if (file->d_name[0] != '.' || length < 5 || strcmp(file->d_name + length - 4, ".tmp") != 0) continue;
        if (fstatat(fd, file->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
            info.st_mtime + STALE_SECONDS < time(NULL))
            unlinkat(fd, file->d_name, 0);
    }
    closedir(files);
}

static bool default_path(char out[1024]) {
    const char *home = getenv("HOME");
    if (!home || !*home) return false;
    int length = snprintf(out, 1024, "%s/.cache", home);
    if (length < 0 || length > 1000) return false;
    mkdir(out, 0700);
    snprintf(out + length, 1024 - (size_t)length, "/dtm");
    return true;
}

void dtm_jit_folder_open(const char *path, dtm_jit_folder *out) {
    struct stat info;
    memset(out, 0, sizeof *out);
    out->fd = -1;
    if (path)
        snprintf(out->path, sizeof out->path, "%s", path);
    else if (!default_path(out->path)) {
        snprintf(out->notice, sizeof out->notice, "compiled kernels are not kept: HOME does not say where");
        return;
    }
    if (mkdir(out->path, 0700) != 0 && errno != EEXIST) {
        snprintf(out->notice, sizeof out->notice, "compiled kernels are not kept: cannot make the folder %s: %s", out->path, strerror(errno));
        return;
    }
    int fd = open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0)
        snprintf(out->notice, sizeof out->notice, "compiled kernels are not kept: cannot open the folder %s: %s", out->path, strerror(errno));
    else if (info.st_uid != geteuid() || (info.st_mode & 022))
        snprintf(out->notice, sizeof out->notice, "compiled kernels are not kept: the folder %s is %s", out->path,
                 info.st_uid != geteuid() ? "another user's" : "one that others may write");
    else
        out->fd = fd;
    if (out->fd >= 0)
        remove_stale(fd);
    else if (fd >= 0)
        close(fd);
}

void dtm_jit_folder_close(dtm_jit_folder *folder) {
    if (folder->fd >= 0) close(folder->fd);
    folder->fd = -1;
}

static void key_text(const dtm_jit_identity *identity, char out[65]) {
    for (int i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", identity->key[i]);
}

/* NULL if it cannot be read whole; one byte more than its size is asked for, so that a growing file is not taken for whole. */
static unsigned char *read_all(int fd, size_t bytes) {
    unsigned char *data = malloc(bytes + 1);
    size_t done = 0;
    while (data && done <= bytes) {
        ssize_t got = read(fd, data + done, bytes + 1 - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += (size_t)got;
    }
    if (data && done == bytes) return data;
    free(data);
    return NULL;
}

dtm_jit_found dtm_jit_folder_read(const dtm_jit_folder *folder, const dtm_jit_identity *identity, dtm_jit_code **out) {
    char key[65], name[80];
    struct stat info;
    if (folder->fd < 0) return DTM_JIT_ABSENT;
    key_text(identity, key);
    snprintf(name, sizeof name, "%s.kernel", key);
    int fd = openat(folder->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return DTM_JIT_ABSENT;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
        close(fd);
        return DTM_JIT_ABSENT;
    }
    unsigned char *entry = info.st_size > (off_t)1 << 30 ? NULL : read_all(fd, (size_t)info.st_size);
    close(fd);
    *out = entry ? dtm_jit_open_entry(entry, (size_t)info.st_size, identity, false) : NULL;
    if (*out) return DTM_JIT_FOUND;
    free(entry);
    unlinkat(folder->fd, name, 0);
    return DTM_JIT_CORRUPT;
}

static int write_all(int fd, const unsigned char *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t done = write(fd, data, bytes);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return errno;
        data += done;
        bytes -= (size_t)done;
    }
    return fsync(fd) == 0 ? 0 : errno;
}

int dtm_jit_folder_write(const dtm_jit_folder *folder, const dtm_jit_identity *identity, const unsigned char *entry, size_t bytes) {
    char key[65], name[80], temporary[80];
    uint64_t drawn = 0; /* homes are shared among nodes, and containers have equal process numbers */
    if (folder->fd < 0) return 0;
    if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn) return EAGAIN;
    key_text(identity, key);
    snprintf(name, sizeof name, "%s.kernel", key);
    snprintf(temporary, sizeof temporary, ".%.16s.%016llx.tmp", key, (unsigned long long)drawn);
    int fd = openat(folder->fd, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    int error = write_all(fd, entry, bytes);
    if (close(fd) != 0 && !error) error = errno;
    if (!error && renameat(folder->fd, temporary, folder->fd, name) != 0) error = errno;
    if (error) unlinkat(folder->fd, temporary, 0);
    return error;
}

void dtm_jit_folder_save(const dtm_jit_folder *folder, const dtm_jit_identity *identity, const char *text, char out[1200]) {
    char key[65];
    key_text(identity, key);
    snprintf(out, 1200, "%s/failed-%.16s-XXXXXX.cu", folder->fd >= 0 ? folder->path : "/tmp", key);
    int fd = mkstemps(out, 3), error = fd < 0 ? errno : write_all(fd, (const unsigned char *)text, strlen(text));
    if (fd >= 0) close(fd);
    if (error) *out = 0;
}
