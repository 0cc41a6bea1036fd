//! Whether the structures of `rdma-sys` lie in memory as the C headers of this machine have them.
use std::fmt::Write;
use std::fs;
use std::process::Command;

use rdma_sys::*;

/// Sizes and offsets as Rust has them, and the C program that prints its own.
struct Layout {
    rust: String,
    c: String,
}

impl Layout {
    fn number(&mut self, name: &str, value: usize, c: &str) {
        writeln!(self.rust, "{name} {value}").unwrap();
        writeln!(self.c, "  printf(\"{name} %zu\\n\", (size_t){c});").unwrap();
    }
}

/// For each structure its size, and the offset of each field, which may have another name in C.
macro_rules! structures {
    ($layout:ident, $($name:ident { $($field:ident $(= $c:literal)?),* $(,)? })*) => {$(
        let c = stringify!($name);
        $layout.number(c, size_of::<$name>(), &format!("sizeof(struct {c})"));
        $(
            let field = [$($c,)? stringify!($field)][0];
            let offset = std::mem::offset_of!($name, $field);
            $layout.number(&format!("{c}.{field}"), offset, &format!("offsetof(struct {c}, {field})"));
        )*
    )*};
}

fn ours() -> Layout {
    let mut layout = Layout { rust: String::new(), c: String::new() };
    structures! { layout,
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data_invalidated_rkey_union = "imm_data", wr,
            bind_mw_tso_union = "bind_mw",
        }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_sge { addr, length, lkey }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data_invalidated_rkey_union = "invalidated_rkey", qp_num,
            wc_flags,
        }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_attr { qp_state, cap, min_rnr_timer, rnr_retry, rate_limit }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp { context, pd, send_cq, recv_cq, qp_num, state, qp_type }
        ibv_srq { context, srq_context, pd, handle }
        ibv_srq_init_attr { srq_context, attr }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_cq { context, channel, cq_context, cqe }
        ibv_mr { context, pd, addr, length, lkey, rkey }
        ibv_mw { context, pd, rkey, type_ = "type" }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, abi_compat }
        ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv, post_srq_recv, alloc_mw, dealloc_mw }
        ibv_device { node_type, transport_type, name, dev_name }
        ibv_device_attr { max_mr_size, max_qp, max_qp_wr, max_sge, max_cqe, max_mr, max_qp_rd_atom, max_mw, max_srq, max_srq_wr, phys_port_cnt }
        ibv_port_attr { state, max_mtu, active_mtu, link_layer, flags }
        ibv_comp_channel { context, fd, refcnt }
        rdma_event_channel { fd }
        rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, pd }
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
            rnr_retry_count,
        }
        rdma_cm_event { id, listen_id, event, status, param }
    }
    layout
}

#[test]
fn structures_lie_as_the_headers_have_them() {
    let Layout { rust, c } = ours();
    let place = tempfile::tempdir().unwrap();
    let (source, program) = (place.path().join("layout.c"), place.path().join("layout"));
    let headers = "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n";
    fs::write(&source, format!("{headers}int main(void) {{\n{c}  return 0;\n}}\n")).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).output();
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(error) => return eprintln!("skipped: there is no C compiler (cc): {error}"),
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let theirs = Command::new(&program).output().unwrap();
    assert_eq!(String::from_utf8(theirs.stdout).unwrap(), rust);
}
