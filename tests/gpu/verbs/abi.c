/* runtime/comm/verbs_abi.h against libibverbs' headers: numbers, sizes, offsets. Says that it was skipped (77) where there are none. */
#include "runtime/comm/verbs_abi.h"

#include <stdio.h>

#ifdef DTM_VERBS_HEADERS
#include <infiniband/verbs.h>

static int failures, checks;

static void equal(const char *what, long long ours, long long theirs) {
    checks++;
    if (ours == theirs) return;
    failures++;
    printf("%s is %lld, the headers have %lld\n", what, ours, theirs);
}

#define SIZE(ours, theirs) equal("sizeof " #ours, sizeof(ours), sizeof(theirs))
#define AT(ours, a, theirs, b)                                                                                        \
    equal(#ours "." #a, offsetof(ours, a), offsetof(theirs, b));                                                      \
    equal("size of " #ours "." #a, sizeof(((ours *)0)->a), sizeof(((theirs *)0)->b))

static void queries(void) {
    SIZE(dtm_verbs_gid, union ibv_gid);
    SIZE(dtm_verbs_device_attr, struct ibv_device_attr);
    AT(dtm_verbs_device_attr, vendor_id, struct ibv_device_attr, vendor_id);
    AT(dtm_verbs_device_attr, vendor_part_id, struct ibv_device_attr, vendor_part_id);
    AT(dtm_verbs_device_attr, max_qp_wr, struct ibv_device_attr, max_qp_wr);
    AT(dtm_verbs_device_attr, max_cqe, struct ibv_device_attr, max_cqe);
    AT(dtm_verbs_device_attr, max_qp_rd_atomic, struct ibv_device_attr, max_qp_rd_atom);
    AT(dtm_verbs_device_attr, max_pkeys, struct ibv_device_attr, max_pkeys);
    AT(dtm_verbs_device_attr, ports, struct ibv_device_attr, phys_port_cnt);
    SIZE(dtm_verbs_port_attr, struct ibv_port_attr);
    AT(dtm_verbs_port_attr, state, struct ibv_port_attr, state);
    AT(dtm_verbs_port_attr, active_mtu, struct ibv_port_attr, active_mtu);
    AT(dtm_verbs_port_attr, gid_table, struct ibv_port_attr, gid_tbl_len);
    AT(dtm_verbs_port_attr, max_message, struct ibv_port_attr, max_msg_sz);
    AT(dtm_verbs_port_attr, lid, struct ibv_port_attr, lid);
    AT(dtm_verbs_port_attr, active_width, struct ibv_port_attr, active_width);
    AT(dtm_verbs_port_attr, active_speed, struct ibv_port_attr, active_speed);
    AT(dtm_verbs_port_attr, physical_state, struct ibv_port_attr, phys_state);
    AT(dtm_verbs_port_attr, link_layer, struct ibv_port_attr, link_layer);
}

static void objects(void) {
    AT(dtm_verbs_context, device, struct ibv_context, device);
    AT(dtm_verbs_context, poll_cq, struct ibv_context, ops.poll_cq);
    AT(dtm_verbs_context, post_send, struct ibv_context, ops.post_send);
    AT(dtm_verbs_context, post_recv, struct ibv_context, ops.post_recv);
    AT(dtm_verbs_context, command_file, struct ibv_context, cmd_fd);
    AT(dtm_verbs_context, async_file, struct ibv_context, async_fd);
    AT(dtm_verbs_pd, context, struct ibv_pd, context);
    SIZE(dtm_verbs_mr, struct ibv_mr);
    AT(dtm_verbs_mr, at, struct ibv_mr, addr);
    AT(dtm_verbs_mr, bytes, struct ibv_mr, length);
    AT(dtm_verbs_mr, lkey, struct ibv_mr, lkey);
    AT(dtm_verbs_mr, rkey, struct ibv_mr, rkey);
    AT(dtm_verbs_cq, context, struct ibv_cq, context);
    AT(dtm_verbs_cq, entries, struct ibv_cq, cqe);
    AT(dtm_verbs_qp, send_cq, struct ibv_qp, send_cq);
    AT(dtm_verbs_qp, receive_cq, struct ibv_qp, recv_cq);
    AT(dtm_verbs_qp, number, struct ibv_qp, qp_num);
    AT(dtm_verbs_qp, state, struct ibv_qp, state);
    AT(dtm_verbs_qp, type, struct ibv_qp, qp_type);
}

static void queue_pairs(void) {
    SIZE(dtm_verbs_cap, struct ibv_qp_cap);
    AT(dtm_verbs_cap, send_wr, struct ibv_qp_cap, max_send_wr);
    AT(dtm_verbs_cap, inline_bytes, struct ibv_qp_cap, max_inline_data);
    SIZE(dtm_verbs_qp_init, struct ibv_qp_init_attr);
    AT(dtm_verbs_qp_init, cap, struct ibv_qp_init_attr, cap);
    AT(dtm_verbs_qp_init, type, struct ibv_qp_init_attr, qp_type);
    AT(dtm_verbs_qp_init, signal_all, struct ibv_qp_init_attr, sq_sig_all);
    SIZE(dtm_verbs_address, struct ibv_ah_attr);
    AT(dtm_verbs_address, gid, struct ibv_ah_attr, grh.dgid);
    AT(dtm_verbs_address, gid_index, struct ibv_ah_attr, grh.sgid_index);
    AT(dtm_verbs_address, hop_limit, struct ibv_ah_attr, grh.hop_limit);
    AT(dtm_verbs_address, lid, struct ibv_ah_attr, dlid);
    AT(dtm_verbs_address, is_global, struct ibv_ah_attr, is_global);
    AT(dtm_verbs_address, port, struct ibv_ah_attr, port_num);
    SIZE(dtm_verbs_qp_attr, struct ibv_qp_attr);
    AT(dtm_verbs_qp_attr, state, struct ibv_qp_attr, qp_state);
    AT(dtm_verbs_qp_attr, path_mtu, struct ibv_qp_attr, path_mtu);
    AT(dtm_verbs_qp_attr, receive_psn, struct ibv_qp_attr, rq_psn);
    AT(dtm_verbs_qp_attr, send_psn, struct ibv_qp_attr, sq_psn);
    AT(dtm_verbs_qp_attr, remote_qp, struct ibv_qp_attr, dest_qp_num);
    AT(dtm_verbs_qp_attr, access, struct ibv_qp_attr, qp_access_flags);
    AT(dtm_verbs_qp_attr, address, struct ibv_qp_attr, ah_attr);
    AT(dtm_verbs_qp_attr, pkey_index, struct ibv_qp_attr, pkey_index);
    AT(dtm_verbs_qp_attr, max_rd_atomic, struct ibv_qp_attr, max_rd_atomic);
    AT(dtm_verbs_qp_attr, max_dest_rd_atomic, struct ibv_qp_attr, max_dest_rd_atomic);
    AT(dtm_verbs_qp_attr, rnr_timer, struct ibv_qp_attr, min_rnr_timer);
    AT(dtm_verbs_qp_attr, port, struct ibv_qp_attr, port_num);
    AT(dtm_verbs_qp_attr, timeout, struct ibv_qp_attr, timeout);
    AT(dtm_verbs_qp_attr, retries, struct ibv_qp_attr, retry_cnt);
    AT(dtm_verbs_qp_attr, rnr_retries, struct ibv_qp_attr, rnr_retry);
}

static void work(void) {
    SIZE(dtm_verbs_sge, struct ibv_sge);
    AT(dtm_verbs_sge, at, struct ibv_sge, addr);
    AT(dtm_verbs_sge, bytes, struct ibv_sge, length);
    AT(dtm_verbs_sge, lkey, struct ibv_sge, lkey);
    SIZE(dtm_verbs_send, struct ibv_send_wr);
    AT(dtm_verbs_send, sges, struct ibv_send_wr, sg_list);
    AT(dtm_verbs_send, opcode, struct ibv_send_wr, opcode);
    AT(dtm_verbs_send, flags, struct ibv_send_wr, send_flags);
    AT(dtm_verbs_send, immediate, struct ibv_send_wr, imm_data);
    AT(dtm_verbs_send, remote, struct ibv_send_wr, wr.rdma.remote_addr);
    AT(dtm_verbs_send, rkey, struct ibv_send_wr, wr.rdma.rkey);
    SIZE(dtm_verbs_receive, struct ibv_recv_wr);
    AT(dtm_verbs_receive, n_sges, struct ibv_recv_wr, num_sge);
    SIZE(dtm_verbs_wc, struct ibv_wc);
    AT(dtm_verbs_wc, status, struct ibv_wc, status);
    AT(dtm_verbs_wc, opcode, struct ibv_wc, opcode);
    AT(dtm_verbs_wc, vendor_error, struct ibv_wc, vendor_err);
    AT(dtm_verbs_wc, bytes, struct ibv_wc, byte_len);
    AT(dtm_verbs_wc, immediate, struct ibv_wc, imm_data);
    AT(dtm_verbs_wc, qp, struct ibv_wc, qp_num);
    AT(dtm_verbs_wc, flags, struct ibv_wc, wc_flags);
}

int main(void) {
#define NUMBER(ours, value, theirs) equal(#ours, ours, (long long)theirs);
    DTM_VERBS_NUMBERS(NUMBER)
    queries();
    objects();
    queue_pairs();
    work();
    printf("%d checks, %d differ\n", checks, failures);
    return failures != 0;
}
#else
int main(void) {
    printf("skipped: there is no infiniband/verbs.h (libibverbs-dev)\n");
    return 77;
}
#endif
