// SPDX-License-Identifier: GPL-2.0-only
//! The part of QEMU's plugin interface (version 4) that the observer uses, and what QEMU exports besides it: the CPU
//! that is executing. The interface reports a wrong CPU under round robin.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};

pub const API_VERSION: c_int = 4;

pub type Id = u64;
pub type Udata = *mut c_void;
pub type UdataCallback = extern "C" fn(c_uint, Udata);

#[repr(C)]
pub struct Info {
    pub target_name: *const c_char,
    pub version_min: c_int,
    pub version_cur: c_int,
    pub system_emulation: bool,
    pub smp_vcpus: c_int,
    pub max_vcpus: c_int,
}

/// A place in a scoreboard.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct U64 {
    pub score: *mut c_void,
    pub offset: usize,
}

#[repr(C)]
pub struct ByteArray {
    pub data: *mut u8,
    pub len: c_uint,
}

#[repr(C)]
pub struct RegisterDescriptor {
    pub handle: *mut c_void,
    pub name: *const c_char,
    pub feature: *const c_char,
}

/// A GArray of register descriptors.
#[repr(C)]
pub struct RegisterArray {
    pub data: *const RegisterDescriptor,
    pub len: c_uint,
}

pub const R_REGS: c_int = 1;
pub const INLINE_STORE_U64: c_int = 1;

extern "C" {
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, cb: extern "C" fn(Id, *mut c_void));
    pub fn qemu_plugin_register_atexit_cb(id: Id, cb: extern "C" fn(Id, Udata), udata: Udata);
    pub fn qemu_plugin_reset(id: Id, cb: extern "C" fn(Id));
    pub fn qemu_plugin_register_vcpu_tb_exec_cb(
        tb: *mut c_void,
        cb: UdataCallback,
        flags: c_int,
        udata: Udata,
    );
    pub fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut c_void,
        cb: UdataCallback,
        flags: c_int,
        udata: Udata,
    );
    pub fn qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
        insn: *mut c_void,
        op: c_int,
        entry: U64,
        imm: u64,
    );
    pub fn qemu_plugin_tb_n_insns(tb: *const c_void) -> usize;
    pub fn qemu_plugin_tb_vaddr(tb: *const c_void) -> u64;
    pub fn qemu_plugin_tb_get_insn(tb: *const c_void, index: usize) -> *mut c_void;
    pub fn qemu_plugin_insn_data(insn: *const c_void, to: *mut c_void, len: usize) -> usize;
    pub fn qemu_plugin_insn_size(insn: *const c_void) -> usize;
    pub fn qemu_plugin_get_registers() -> *mut RegisterArray;
    pub fn qemu_plugin_read_memory_vaddr(address: u64, data: *mut ByteArray, len: usize) -> bool;
    pub fn qemu_plugin_read_register(handle: *mut c_void, to: *mut ByteArray) -> c_int;
    pub fn qemu_plugin_scoreboard_new(element_size: usize) -> *mut c_void;
    pub fn qemu_plugin_scoreboard_find(score: *mut c_void, vcpu: c_uint) -> *mut c_void;
    pub fn g_byte_array_new() -> *mut ByteArray;
    pub fn g_byte_array_set_size(array: *mut ByteArray, length: c_uint) -> *mut ByteArray;
}

/// CPUs by number, and a pointer to the one that executes on the calling thread.
pub struct CurrentCpu {
    current: *const *const c_void,
    cpus: Vec<*const c_void>,
}

impl CurrentCpu {
    /// Must be created on the thread that executes. None: this QEMU does not export the needed symbols.
    pub fn new(n_cpus: usize) -> Option<Self> {
        let symbol = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        let current = symbol(c"current_cpu");
        let get_cpu = symbol(c"qemu_get_cpu");
        if current.is_null() || get_cpu.is_null() {
            return None;
        }
        // SAFETY: CPUState *qemu_get_cpu(int index)
        let get_cpu: extern "C" fn(c_int) -> *const c_void = unsafe { std::mem::transmute(get_cpu) };
        let cpus = (0..n_cpus as c_int).map(|index| get_cpu(index)).collect();
        Some(Self { current: current.cast(), cpus })
    }

    #[inline]
    pub fn index(&self) -> usize {
        if self.cpus.len() == 1 {
            return 0;
        }
        // SAFETY: a thread-local of the thread that made `self`, which lives as long as QEMU.
        let cpu = unsafe { *self.current };
        self.cpus.iter().position(|&c| c == cpu).unwrap_or(0)
    }
}
