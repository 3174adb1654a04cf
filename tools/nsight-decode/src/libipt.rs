// SPDX-License-Identifier: GPL-2.0-only
//! Declarations of libipt (the one in libipt/) from <intel-pt.h>: only those that the decoder uses.
//!
//! Written by hand, since bindgen needs libclang at build time. The sizes are checked below, and by libipt, which
//! receives them.

use std::ops::Range;
use std::os::raw::{c_char, c_int, c_void};

#[repr(C)]
pub struct Cpu {
    pub vendor: u32,
    pub family: u16,
    pub model: u8,
    pub stepping: u8,
}

#[repr(C)]
pub struct Config {
    pub size: usize,
    pub begin: *const u8,
    pub end: *const u8,
    decode: [usize; 2],
    pub cpu: Cpu,
    errata: [u32; 16],
    pub cpuid_0x15_eax: u32,
    pub cpuid_0x15_ebx: u32,
    pub mtc_freq: u8,
    pub nom_freq: u8,
    /// For the block decoder: bit 0 end_on_call, bit 1 enable_tick_events, bit 2 end_on_jump.
    pub flags: [u32; 4],
    filter: [u64; 17],
}

pub const END_ON_CALL: u32 = 1 << 0;
/// `pcv_intel`
const VENDOR_INTEL: u32 = 1;

impl Config {
    pub fn new(trace: Range<*const u8>) -> Self {
        // SAFETY: libipt requires zeros where nothing is set, and zeros are valid for each field.
        let mut config: Self = unsafe { std::mem::zeroed() };
        config.size = std::mem::size_of::<Self>();
        (config.begin, config.end) = (trace.start, trace.end);
        config
    }

    /// Sets an Intel CPU, and enables the workarounds for its errata.
    pub fn set_cpu(&mut self, family: u16, model: u8, stepping: u8) {
        self.cpu = Cpu { vendor: VENDOR_INTEL, family, model, stepping };
        // SAFETY: both belong to this structure. An unknown CPU has no errata.
        unsafe { pt_cpu_errata(self.errata.as_mut_ptr(), &self.cpu) };
    }
}

#[repr(C)]
pub struct Event {
    pub kind: u32,
    /// Bit 0 ip_suppressed, bit 1 status_update, bit 2 has_tsc.
    pub bits: u32,
    pub tsc: u64,
    lost_mtc: u32,
    lost_cyc: u32,
    reserved: [u64; 2],
    pub variant: [u64; 3],
}

impl Event {
    pub fn ip_suppressed(&self) -> bool {
        self.bits & 1 != 0
    }

    pub fn status_update(&self) -> bool {
        self.bits & 2 != 0
    }

    pub fn has_tsc(&self) -> bool {
        self.bits & 4 != 0
    }
}

pub mod event {
    pub const ENABLED: u32 = 0;
    pub const DISABLED: u32 = 1;
    pub const ASYNC_DISABLED: u32 = 2;
    pub const ASYNC_BRANCH: u32 = 3;
    pub const PAGING: u32 = 4;
    pub const ASYNC_PAGING: u32 = 5;
    pub const OVERFLOW: u32 = 6;
    pub const STOP: u32 = 9;
    pub const EXSTOP: u32 = 12;
    pub const MWAIT: u32 = 13;
    pub const PWRE: u32 = 14;
    pub const PWRX: u32 = 15;
    pub const PTWRITE: u32 = 16;
    pub const CBR: u32 = 18;
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Block {
    pub ip: u64,
    pub end_ip: u64,
    pub isid: i32,
    pub mode: u32,
    pub iclass: u32,
    pub ninsn: u16,
    raw: [u8; 15],
    size: u8,
    /// Bit 0 speculative, bit 1 truncated: the last instruction lies in two sections, and is in raw.
    bits: u8,
}

/// Values of a block's `mode`; 0 is unknown.
pub const MODE_16: u32 = 1;
pub const MODE_32: u32 = 2;
pub const MODE_64: u32 = 3;

impl Block {
    /// The last instruction's bytes if it lies in two sections.
    pub fn truncated(&self) -> Option<&[u8]> {
        (self.bits & 2 != 0).then(|| &self.raw[..usize::from(self.size).min(15)])
    }
}

/// Classes of the instruction that ends a block: those that the decoder checks.
pub mod iclass {
    pub const CALL: u32 = 2;
    pub const RETURN: u32 = 3;
    pub const JUMP: u32 = 4;
    pub const COND_JUMP: u32 = 5;
}

pub mod status {
    pub const EVENT_PENDING: i32 = 1;
    pub const EOS: i32 = 4;
}

pub use std::os::raw::c_int as Status;

/// Error codes, as positive numbers.
pub mod error {
    pub const NOMEM: i32 = 9;
    pub const BAD_OPC: i32 = 4;
    pub const BAD_PACKET: i32 = 5;
    pub const BAD_CONTEXT: i32 = 6;
    pub const EOS: i32 = 7;
    pub const BAD_QUERY: i32 = 8;
    pub const NOMAP: i32 = 13;
    pub const BAD_INSN: i32 = 14;
    pub const BAD_IMAGE: i32 = 17;
    pub const RETSTACK_EMPTY: i32 = 20;
    pub const BAD_RETCOMP: i32 = 21;
    pub const BAD_STATUS_UPDATE: i32 = 22;
    pub const NO_ENABLE: i32 = 23;
    pub const BAD_FILE: i32 = 26;
}

/// The part of a trace that is in memory. Added by libipt/patches.
#[repr(C)]
pub struct Window {
    pub begin: *const u8,
    pub end: *const u8,
    /// Makes the packet at a place readable, and sets begin and end.
    shift: MoveWindow,
}

pub type MoveWindow = extern "C" fn(*mut Window, *const u8) -> Status;

impl Window {
    pub fn new(shift: MoveWindow) -> Self {
        Self { begin: std::ptr::null(), end: std::ptr::null(), shift }
    }
}

macro_rules! opaque {
    ($($name:ident)*) => {
        $(#[repr(C)] pub struct $name { _private: [u8; 0] })*
    };
}
opaque!(BlockDecoder Image Iscache);

/// Buffer, its size, address space, address, context.
pub type ReadMemory = extern "C" fn(*mut u8, usize, *const c_void, u64, *mut c_void) -> c_int;

extern "C" {
    pub fn pt_cpu_errata(errata: *mut u32, cpu: *const Cpu) -> Status;
    pub fn pt_blk_alloc_decoder(config: *const Config) -> *mut BlockDecoder;
    pub fn pt_blk_free_decoder(decoder: *mut BlockDecoder);
    pub fn pt_blk_sync_set(decoder: *mut BlockDecoder, offset: u64) -> Status;
    pub fn pt_blk_get_offset(decoder: *const BlockDecoder, offset: *mut u64) -> Status;
    /// Added by libipt/patches.
    pub fn pt_blk_get_ip(decoder: *const BlockDecoder, ip: *mut u64) -> Status;
    /// Added by libipt/patches.
    pub fn pt_blk_set_window(decoder: *mut BlockDecoder, window: *mut Window) -> Status;
    pub fn pt_blk_set_image(decoder: *mut BlockDecoder, image: *mut Image) -> Status;
    pub fn pt_blk_time(decoder: *mut BlockDecoder, time: *mut u64, mtc: *mut u32, cyc: *mut u32) -> Status;
    pub fn pt_blk_next(decoder: *mut BlockDecoder, block: *mut Block, size: usize) -> Status;
    pub fn pt_blk_event(decoder: *mut BlockDecoder, event: *mut Event, size: usize) -> Status;
    pub fn pt_image_alloc(name: *const c_char) -> *mut Image;
    pub fn pt_image_free(image: *mut Image);
    pub fn pt_image_set_callback(
        image: *mut Image,
        callback: Option<ReadMemory>,
        context: *mut c_void,
    ) -> Status;
    pub fn pt_image_add_cached(
        image: *mut Image,
        cache: *mut Iscache,
        isid: c_int,
        asid: *const c_void,
    ) -> Status;
    pub fn pt_iscache_alloc(name: *const c_char) -> *mut Iscache;
    pub fn pt_iscache_free(cache: *mut Iscache);
    pub fn pt_iscache_set_limit(cache: *mut Iscache, limit: u64) -> Status;
    pub fn pt_iscache_add_file(
        cache: *mut Iscache,
        file: *const c_char,
        offset: u64,
        size: u64,
        vaddr: u64,
    ) -> Status;
    pub fn pt_iscache_read(cache: *mut Iscache, to: *mut u8, size: u64, isid: c_int, vaddr: u64) -> Status;
}

// The sizes in libipt 2.1.1's header on x86-64.
const _: () = assert!(std::mem::size_of::<Config>() == 280);
const _: () = assert!(std::mem::offset_of!(Config, cpuid_0x15_eax) == 112);
const _: () = assert!(std::mem::offset_of!(Config, flags) == 124);
const _: () = assert!(std::mem::size_of::<Event>() == 64);
const _: () = assert!(std::mem::offset_of!(Event, variant) == 40);
const _: () = assert!(std::mem::size_of::<Block>() == 48);
const _: () = assert!(std::mem::offset_of!(Block, ninsn) == 28);
