// SPDX-License-Identifier: GPL-2.0-only
//! QEMU TCG plugin that logs what the guest's CPUs execute, while the guest requests it.
//!
//! `-plugin libpt_observer.so,prefix=PATH`. The guest controls it with marks (see `pt_insn::MARK`): START with number k
//! in rdi begins the log `PATH<k>.log`, STOP ends it. Outside of a log, only marks are instrumented, and the guest runs
//! at nearly full speed: START and STOP make QEMU translate all code again.
//!
//! CPUs must take turns on one thread (`-icount`, or `-accel tcg,thread=single`).

mod ffi;
mod guest;
mod observer;
mod translate;

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_uint, CStr};

use observer::Observer;

/// From this symbol, QEMU reads the version of the interface that a plugin was built for.
#[no_mangle]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: c_int = ffi::API_VERSION;

struct Cell(UnsafeCell<Option<Observer>>);

// SAFETY: written once in qemu_plugin_install. Afterwards, only two threads use it: the one on which all CPUs take
// turns and, after that one has stopped, the thread that ends QEMU.
unsafe impl Sync for Cell {}

static OBSERVER: Cell = Cell(UnsafeCell::new(None));

/// The observer, for use in callbacks.
#[inline]
fn observer() -> &'static mut Observer {
    // SAFETY: see Cell.
    unsafe { (*OBSERVER.0.get()).as_mut().unwrap_unchecked() }
}

/// Recording cannot continue: an incomplete log must not look like a complete one.
fn die(message: &str, hint: &str) -> ! {
    eprintln!("pt-observer: error: {message}\nhint: {hint}");
    // SAFETY: ends QEMU without its exit handlers, some of which wait for this thread.
    unsafe { libc::_exit(1) }
}

/// # Safety
/// Called by QEMU, with an array of `argc` strings.
#[no_mangle]
pub unsafe extern "C" fn qemu_plugin_install(
    id: ffi::Id,
    info: *const ffi::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let mut prefix = None;
    for i in 0..argc as usize {
        let argument = CStr::from_ptr(*argv.add(i)).to_string_lossy();
        match argument.split_once('=') {
            Some(("prefix", path)) => prefix = Some(path.to_owned()),
            _ => {
                eprintln!("pt-observer: error: unknown option {argument}\nhint: prefix=PATH");
                return 1;
            }
        }
    }
    let Some(prefix) = prefix else {
        eprintln!("pt-observer: error: no prefix given\nhint: -plugin libpt_observer.so,prefix=PATH");
        return 1;
    };
    if !(*info).system_emulation || CStr::from_ptr((*info).target_name).to_bytes() != b"x86_64" {
        eprintln!("pt-observer: error: not qemu-system-x86_64\nhint: it observes whole x86-64 machines");
        return 1;
    }
    let n_cpus = (*info).smp_vcpus as usize;
    if n_cpus > observer::MAX_CPUS {
        eprintln!("pt-observer: error: {n_cpus} CPUs\nhint: at most {}", observer::MAX_CPUS);
        return 1;
    }
    *OBSERVER.0.get() = Some(Observer::new(prefix, n_cpus, id));
    ffi::qemu_plugin_register_atexit_cb(id, at_exit, std::ptr::null_mut());
    register(id);
    0
}

/// Registers the callbacks that a reset removes.
fn register(id: ffi::Id) {
    unsafe { ffi::qemu_plugin_register_vcpu_tb_trans_cb(id, translate::block) };
}

/// Make QEMU discard all translated code, so that it is instrumented for the current state.
fn retranslate() {
    extern "C" fn done(id: ffi::Id) {
        unsafe { ffi::qemu_plugin_register_atexit_cb(id, at_exit, std::ptr::null_mut()) };
        register(id);
        observer().instrumentation_changed();
    }
    unsafe { ffi::qemu_plugin_reset(observer().id(), done) };
}

extern "C" fn at_exit(_: ffi::Id, _: ffi::Udata) {
    observer().finish();
}

/// A CPU's number as QEMU passes it; it is wrong when CPUs take turns: see `ffi::CurrentCpu`.
pub(crate) type VcpuIndex = c_uint;
