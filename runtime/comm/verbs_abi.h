/* What dtm uses of libibverbs (rdma-core's, or any with its ABI), declared so that neither its headers nor the library are needed to
 * build: tests/gpu/verbs/abi.c compares numbers, sizes and offsets with the headers where these are. Names are the library's
 * without `ibv_`. Objects (context, pd, mr, cq, qp) begin with the members below; what follows in them is the library's own. */
#ifndef DTM_VERBS_ABI_H
#define DTM_VERBS_ABI_H

#include <stddef.h>
#include <stdint.h>

/* X(ours, value, theirs) */
#define DTM_VERBS_NUMBERS(X)                                                                                          \
    X(DTM_VERBS_PORT_DOWN, 1, IBV_PORT_DOWN)                                                                          \
    X(DTM_VERBS_PORT_INIT, 2, IBV_PORT_INIT)                                                                          \
    X(DTM_VERBS_PORT_ARMED, 3, IBV_PORT_ARMED)                                                                        \
    X(DTM_VERBS_PORT_ACTIVE, 4, IBV_PORT_ACTIVE)                                                                      \
    X(DTM_VERBS_INFINIBAND, 1, IBV_LINK_LAYER_INFINIBAND)                                                             \
    X(DTM_VERBS_ETHERNET, 2, IBV_LINK_LAYER_ETHERNET)                                                                 \
    X(DTM_VERBS_MTU_256, 1, IBV_MTU_256)                                                                              \
    X(DTM_VERBS_MTU_4096, 5, IBV_MTU_4096)                                                                            \
    X(DTM_VERBS_RC, 2, IBV_QPT_RC)                                                                                    \
    X(DTM_VERBS_RESET, 0, IBV_QPS_RESET)                                                                              \
    X(DTM_VERBS_INIT, 1, IBV_QPS_INIT)                                                                                \
    X(DTM_VERBS_RTR, 2, IBV_QPS_RTR)                                                                                  \
    X(DTM_VERBS_RTS, 3, IBV_QPS_RTS)                                                                                  \
    X(DTM_VERBS_ERR, 6, IBV_QPS_ERR)                                                                                  \
    X(DTM_VERBS_QP_STATE, 1 << 0, IBV_QP_STATE)                                                                       \
    X(DTM_VERBS_QP_ACCESS_FLAGS, 1 << 3, IBV_QP_ACCESS_FLAGS)                                                         \
    X(DTM_VERBS_QP_PKEY_INDEX, 1 << 4, IBV_QP_PKEY_INDEX)                                                             \
    X(DTM_VERBS_QP_PORT, 1 << 5, IBV_QP_PORT)                                                                         \
    X(DTM_VERBS_QP_AV, 1 << 7, IBV_QP_AV)                                                                             \
    X(DTM_VERBS_QP_PATH_MTU, 1 << 8, IBV_QP_PATH_MTU)                                                                 \
    X(DTM_VERBS_QP_TIMEOUT, 1 << 9, IBV_QP_TIMEOUT)                                                                   \
    X(DTM_VERBS_QP_RETRY_CNT, 1 << 10, IBV_QP_RETRY_CNT)                                                              \
    X(DTM_VERBS_QP_RNR_RETRY, 1 << 11, IBV_QP_RNR_RETRY)                                                              \
    X(DTM_VERBS_QP_RQ_PSN, 1 << 12, IBV_QP_RQ_PSN)                                                                    \
    X(DTM_VERBS_QP_MAX_RD_ATOMIC, 1 << 13, IBV_QP_MAX_QP_RD_ATOMIC)                                                   \
    X(DTM_VERBS_QP_MIN_RNR_TIMER, 1 << 15, IBV_QP_MIN_RNR_TIMER)                                                      \
    X(DTM_VERBS_QP_SQ_PSN, 1 << 16, IBV_QP_SQ_PSN)                                                                    \
    X(DTM_VERBS_QP_MAX_DEST_RD_ATOMIC, 1 << 17, IBV_QP_MAX_DEST_RD_ATOMIC)                                            \
    X(DTM_VERBS_QP_DEST_QPN, 1 << 20, IBV_QP_DEST_QPN)                                                                \
    X(DTM_VERBS_LOCAL_WRITE, 1, IBV_ACCESS_LOCAL_WRITE)                                                               \
    X(DTM_VERBS_REMOTE_WRITE, 2, IBV_ACCESS_REMOTE_WRITE)                                                             \
    X(DTM_VERBS_WRITE, 0, IBV_WR_RDMA_WRITE)                                                                          \
    X(DTM_VERBS_WRITE_WITH_IMM, 1, IBV_WR_RDMA_WRITE_WITH_IMM)                                                        \
    X(DTM_VERBS_SIGNALED, 2, IBV_SEND_SIGNALED)                                                                       \
    X(DTM_VERBS_INLINE, 8, IBV_SEND_INLINE)                                                                           \
    X(DTM_VERBS_WC_SUCCESS, 0, IBV_WC_SUCCESS)                                                                        \
    X(DTM_VERBS_WC_LOC_LEN_ERR, 1, IBV_WC_LOC_LEN_ERR)                                                                \
    X(DTM_VERBS_WC_LOC_PROT_ERR, 4, IBV_WC_LOC_PROT_ERR)                                                              \
    X(DTM_VERBS_WC_WR_FLUSH_ERR, 5, IBV_WC_WR_FLUSH_ERR)                                                              \
    X(DTM_VERBS_WC_REM_ACCESS_ERR, 10, IBV_WC_REM_ACCESS_ERR)                                                         \
    X(DTM_VERBS_WC_RETRY_EXC_ERR, 12, IBV_WC_RETRY_EXC_ERR)                                                           \
    X(DTM_VERBS_WC_RNR_RETRY_EXC_ERR, 13, IBV_WC_RNR_RETRY_EXC_ERR)                                                   \
    X(DTM_VERBS_WC_RDMA_WRITE, 1, IBV_WC_RDMA_WRITE)                                                                  \
    X(DTM_VERBS_WC_RECV_WITH_IMM, 129, IBV_WC_RECV_RDMA_WITH_IMM)                                                     \
    X(DTM_VERBS_WC_WITH_IMM, 2, IBV_WC_WITH_IMM)

enum {
#define DTM_VERBS_NUMBER(ours, value, theirs) ours = (value),
    DTM_VERBS_NUMBERS(DTM_VERBS_NUMBER)
#undef DTM_VERBS_NUMBER
};

typedef struct dtm_verbs_device dtm_verbs_device;
typedef struct dtm_verbs_context dtm_verbs_context;
typedef union dtm_verbs_gid { uint8_t raw[16]; uint64_t aligned[2]; } dtm_verbs_gid;

typedef struct dtm_verbs_device_attr {
    char firmware[64];
    uint64_t node_guid, system_guid; /* network order */
    uint64_t max_mr_size, page_sizes;
    uint32_t vendor_id, vendor_part_id, hardware_version;
    int32_t max_qp, max_qp_wr;
    uint32_t capabilities;
    int32_t max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atomic;
    int32_t others[19]; /* of kinds of service that are not used */
    uint16_t max_pkeys;
    uint8_t ack_delay, ports;
} dtm_verbs_device_attr;

typedef struct dtm_verbs_port_attr {
    int32_t state, max_mtu, active_mtu, gid_table;
    uint32_t capabilities, max_message, bad_pkeys, bad_qkeys;
    uint16_t pkey_table, lid, sm_lid;
    uint8_t lmc, lanes, sm_sl, subnet_timeout, init_reply, active_width, active_speed, physical_state, link_layer, flags;
    uint16_t capabilities2; /* newer than ibv_query_port, which leaves it */
} dtm_verbs_port_attr;

typedef struct dtm_verbs_pd { dtm_verbs_context *context; } dtm_verbs_pd;
typedef struct dtm_verbs_mr {
    dtm_verbs_context *context;
    dtm_verbs_pd *pd;
    void *at;
    size_t bytes;
    uint32_t handle, lkey, rkey;
} dtm_verbs_mr;
typedef struct dtm_verbs_cq {
    dtm_verbs_context *context;
    void *channel, *user;
    uint32_t handle;
    int32_t entries;
} dtm_verbs_cq;
typedef struct dtm_verbs_qp {
    dtm_verbs_context *context;
    void *user;
    dtm_verbs_pd *pd;
    dtm_verbs_cq *send_cq, *receive_cq;
    void *srq;
    uint32_t handle, number;
    int32_t state, type;
} dtm_verbs_qp;

typedef struct dtm_verbs_cap { uint32_t send_wr, receive_wr, send_sge, receive_sge, inline_bytes; } dtm_verbs_cap;
typedef struct dtm_verbs_qp_init {
    void *user;
    dtm_verbs_cq *send_cq, *receive_cq;
    void *srq;
    dtm_verbs_cap cap; /* in: wanted; out: given */
    int32_t type, signal_all;
} dtm_verbs_qp_init;

typedef struct dtm_verbs_address {
    dtm_verbs_gid gid;
    uint32_t flow_label;
    uint8_t gid_index, hop_limit, traffic_class;
    uint16_t lid;
    uint8_t sl, path_bits, rate, is_global, port;
} dtm_verbs_address;
typedef struct dtm_verbs_qp_attr {
    int32_t state, current_state, path_mtu, migration;
    uint32_t qkey, receive_psn, send_psn, remote_qp, access;
    dtm_verbs_cap cap;
    dtm_verbs_address address, alternative;
    uint16_t pkey_index, alternative_pkey_index;
    uint8_t notify, draining, max_rd_atomic, max_dest_rd_atomic, rnr_timer, port, timeout, retries, rnr_retries, alternative_port,
        alternative_timeout;
    uint32_t rate_limit;
} dtm_verbs_qp_attr;

typedef struct dtm_verbs_sge { uint64_t at; uint32_t bytes, lkey; } dtm_verbs_sge;
typedef struct dtm_verbs_send {
    uint64_t id;
    struct dtm_verbs_send *next;
    dtm_verbs_sge *sges;
    int32_t n_sges, opcode;
    uint32_t flags, immediate; /* immediate: network order */
    uint64_t remote;
    uint32_t rkey;
    uint64_t others[9]; /* of opcodes that are not used */
} dtm_verbs_send;
typedef struct dtm_verbs_receive {
    uint64_t id;
    struct dtm_verbs_receive *next;
    dtm_verbs_sge *sges;
    int32_t n_sges;
} dtm_verbs_receive;
typedef struct dtm_verbs_wc {
    uint64_t id;
    int32_t status, opcode;
    uint32_t vendor_error, bytes, immediate, qp, source_qp, flags;
    uint16_t pkey_index, source_lid;
    uint8_t sl, path_bits;
} dtm_verbs_wc;

/* What libibverbs calls by the context instead of exporting it. */
struct dtm_verbs_context {
    dtm_verbs_device *device;
    void *before[11];
    int (*poll_cq)(dtm_verbs_cq *, int, dtm_verbs_wc *);
    void *between[13];
    int (*post_send)(dtm_verbs_qp *, dtm_verbs_send *, dtm_verbs_send **bad);
    int (*post_recv)(dtm_verbs_qp *, dtm_verbs_receive *, dtm_verbs_receive **bad);
    void *after[5];
    int32_t command_file, async_file;
};

/* X(name, result, parameters): exported as ibv_NAME. */
#define DTM_VERBS_FUNCTIONS(X)                                                                                        \
    X(get_device_list, dtm_verbs_device **, (int *count))                                                             \
    X(free_device_list, void, (dtm_verbs_device **list))                                                              \
    X(get_device_name, const char *, (dtm_verbs_device *device))                                                      \
    X(open_device, dtm_verbs_context *, (dtm_verbs_device *device))                                                   \
    X(close_device, int, (dtm_verbs_context *context))                                                                \
    X(query_device, int, (dtm_verbs_context *context, dtm_verbs_device_attr *out))                                    \
    X(query_port, int, (dtm_verbs_context *context, uint8_t port, dtm_verbs_port_attr *out))                          \
    X(query_gid, int, (dtm_verbs_context *context, uint8_t port, int index, dtm_verbs_gid *out))                      \
    X(alloc_pd, dtm_verbs_pd *, (dtm_verbs_context *context))                                                         \
    X(dealloc_pd, int, (dtm_verbs_pd *pd))                                                                            \
    X(reg_mr, dtm_verbs_mr *, (dtm_verbs_pd *pd, void *at, size_t bytes, int access))                                 \
    X(dereg_mr, int, (dtm_verbs_mr *mr))                                                                              \
    X(create_cq, dtm_verbs_cq *, (dtm_verbs_context *context, int entries, void *user, void *channel, int vector))    \
    X(destroy_cq, int, (dtm_verbs_cq *cq))                                                                            \
    X(create_qp, dtm_verbs_qp *, (dtm_verbs_pd *pd, dtm_verbs_qp_init *init))                                         \
    X(modify_qp, int, (dtm_verbs_qp *qp, dtm_verbs_qp_attr *attr, int mask))                                          \
    X(destroy_qp, int, (dtm_verbs_qp *qp))                                                                            \
    X(wc_status_str, const char *, (int status))

typedef struct dtm_verbs {
#define DTM_VERBS_MEMBER(name, result, parameters) result(*name) parameters;
    DTM_VERBS_FUNCTIONS(DTM_VERBS_MEMBER)
#undef DTM_VERBS_MEMBER
    char path[512]; /* of the file */
} dtm_verbs;

#endif
