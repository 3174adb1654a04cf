// SPDX-License-Identifier: GPL-2.0-only
//! Decides what is instrumented when QEMU translates a block.

use std::ffi::c_void;

use pt_insn::Class;

use crate::{ffi, observer, VcpuIndex};

/// The result of a block's last instruction that has to be read once it has retired.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    Nothing,
    Cr3,
    Tsc,
    Halt,
}

/// A translated block. Lives as long as QEMU: its translation holds a pointer to it.
pub struct Block {
    pub ip: u64,
    pub n_insns: u32,
    pub bytes: Vec<u8>,
    pub leaves: Leaves,
    /// The vector whose handler starts here.
    pub vector: Option<u8>,
    pub watched: bool,
    /// User code may run at another address than that for which it was translated.
    pub user: bool,
    /// Number in the log that was open when the block last ran.
    pub id: u32,
    /// The log that this number belongs to.
    pub log: u32,
}

/// A mark in a block.
struct Mark {
    id: u16,
    at: u32,
}

fn bytes_of(insn: *const c_void) -> ([u8; 16], usize) {
    let mut bytes = [0; 16];
    // SAFETY: QEMU copies at most the given length.
    let n = unsafe {
        let size = ffi::qemu_plugin_insn_size(insn).min(bytes.len());
        ffi::qemu_plugin_insn_data(insn, bytes.as_mut_ptr().cast(), size)
    };
    (bytes, n)
}

/// Marks are seven bytes long: outside of a log, nothing else needs decoding.
const MARK_BYTES: usize = 7;

pub extern "C" fn block(_: ffi::Id, tb: *mut c_void) {
    // SAFETY: `tb` is valid during this call.
    let n_insns = unsafe { ffi::qemu_plugin_tb_n_insns(tb) };
    let observer = observer();
    let full = observer.is_full();
    let mut code = Vec::new();
    let mut last = Class::Other;
    for at in 0..n_insns {
        let insn = unsafe { ffi::qemu_plugin_tb_get_insn(tb, at) };
        let (bytes, n) = bytes_of(insn);
        if n == MARK_BYTES || full && at + 1 == n_insns {
            last = pt_insn::decode(&bytes[..n]).map_or(Class::Other, |i| i.class);
            if let Class::Mark { id } = last {
                let mark = Box::leak(Box::new(Mark { id, at: at as u32 }));
                let udata: ffi::Udata = (mark as *mut Mark).cast();
                unsafe { ffi::qemu_plugin_register_vcpu_insn_exec_cb(insn, on_mark, ffi::R_REGS, udata) };
            }
        }
        if full {
            code.extend_from_slice(&bytes[..n]);
            let value = crate::observer::started_value(at as u32 + 1);
            // SAFETY: a scoreboard that is never freed.
            unsafe {
                ffi::qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
                    insn,
                    ffi::INLINE_STORE_U64,
                    observer.started_place(),
                    value,
                );
            }
        }
    }
    if !full {
        return;
    }
    let ip = unsafe { ffi::qemu_plugin_tb_vaddr(tb) };
    let block = Box::leak(Box::new(Block {
        ip,
        n_insns: n_insns as u32,
        bytes: code,
        leaves: match last {
            Class::MovToCr3 => Leaves::Cr3,
            Class::Rdtsc => Leaves::Tsc,
            Class::Hlt => Leaves::Halt,
            _ => Leaves::Nothing,
        },
        vector: observer.vector_of(ip),
        watched: observer.is_watched(ip),
        user: ip >> 63 == 0,
        id: 0,
        log: 0,
    }));
    let udata: ffi::Udata = (block as *mut Block).cast();
    unsafe { ffi::qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, ffi::R_REGS, udata) };
}

extern "C" fn on_block(_: VcpuIndex, udata: ffi::Udata) {
    // SAFETY: a leaked Block; callbacks of all CPUs are on one thread.
    observer().block(unsafe { &mut *udata.cast::<Block>() });
}

extern "C" fn on_mark(_: VcpuIndex, udata: ffi::Udata) {
    // SAFETY: a leaked Mark.
    let mark = unsafe { &*udata.cast::<Mark>() };
    observer().mark(mark.id, mark.at);
}
