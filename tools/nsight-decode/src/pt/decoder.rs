// SPDX-License-Identifier: GPL-2.0-only
//! A safe interface to libipt's block decoder.

use std::ops::Range;
use std::os::raw::c_int;
use std::rc::Rc;

use super::trace::Trace;
use crate::code::Image;
use crate::error::{Error, Result};
use crate::libipt;
use crate::perfdata::Recording;

/// Decodes the packets of a slice.
pub struct Decoder<'r> {
    pointer: *mut libipt::BlockDecoder,
    /// libipt uses it as long as it is set.
    image: Option<Rc<Image>>,
    /// From a `Box`, as a raw pointer: libipt moves its window within calls.
    trace: *mut Trace<'r>,
}

/// The return values of libipt's functions: flags, or an error code as a negative number.
pub type Status = c_int;

/// The rates for packet times, and the CPU's errata.
pub fn config(trace: Range<*const u8>, recording: &Recording) -> libipt::Config {
    let mut config = libipt::Config::new(trace);
    if let Some((family, model, stepping)) = recording.cpu_model() {
        config.set_cpu(family, model, stepping);
    }
    let info = &recording.info;
    if let Some(period) = recording.config.mtc {
        config.mtc_freq = period;
        config.cpuid_0x15_ebx = info.tsc_ctc.0 as u32;
        config.cpuid_0x15_eax = info.tsc_ctc.1 as u32;
    }
    config.nom_freq = info.max_non_turbo.min(255) as u8;
    config.flags[0] = libipt::END_ON_CALL;
    config
}

impl<'r> Decoder<'r> {
    pub fn new(trace: Box<Trace<'r>>, recording: &Recording) -> Result<Self> {
        // SAFETY: the configuration is copied; the trace outlives the decoder.
        let pointer = unsafe { libipt::pt_blk_alloc_decoder(&config(trace.range(), recording)) };
        if pointer.is_null() {
            return Err(Error::memory("libipt: no decoder (out of memory, or its configuration is refused)"));
        }
        let is_long = trace.is_long();
        let trace = Box::into_raw(trace);
        if is_long {
            // SAFETY: both exist, and the window is the trace's first field.
            unsafe { libipt::pt_blk_set_window(pointer, trace.cast()) };
        }
        Ok(Self { pointer, image: None, trace })
    }

    pub fn trace(&mut self) -> &mut Trace<'r> {
        // SAFETY: it lives as long as the decoder, and libipt uses it only within calls, which take the decoder exclusively.
        unsafe { &mut *self.trace }
    }

    /// Overwrites packets at an offset. None of them may be in use: synchronize the decoder again afterwards.
    pub fn patch(&mut self, offset: usize, packets: &[u8]) {
        self.trace().write(offset, packets);
    }

    pub fn set_image(&mut self, image: Rc<Image>) {
        // SAFETY: both exist; the old image is dropped after the new one is set.
        unsafe { libipt::pt_blk_set_image(self.pointer, image.pointer()) };
        self.image = Some(image);
    }

    pub fn sync_set(&mut self, offset: usize) -> Status {
        unsafe { libipt::pt_blk_sync_set(self.pointer, offset as u64) }
    }

    pub fn next(&mut self, block: &mut libipt::Block) -> Status {
        // libipt does not write to the block if it fails early.
        block.ninsn = 0;
        // SAFETY: the decoder and its trace exist.
        unsafe { libipt::pt_blk_next(self.pointer, block, std::mem::size_of::<libipt::Block>()) }
    }

    pub fn event(&mut self, event: &mut libipt::Event) -> Status {
        unsafe { libipt::pt_blk_event(self.pointer, event, std::mem::size_of::<libipt::Event>()) }
    }

    /// Where execution is: after the last block, or at the target of its branch.
    pub fn ip(&self) -> u64 {
        let mut ip = 0;
        unsafe { libipt::pt_blk_get_ip(self.pointer, &mut ip) };
        ip
    }

    /// Offset up to which packets were read. 0: none yet.
    pub fn offset(&self) -> usize {
        let mut offset = 0;
        unsafe { libipt::pt_blk_get_offset(self.pointer, &mut offset) };
        offset as usize
    }

    /// TSC (56 bits) of the last packet that gave the time. None before the first one.
    pub fn tsc(&mut self) -> Option<u64> {
        let (mut tsc, mut mtc, mut cyc) = (0, 0, 0);
        let status = unsafe { libipt::pt_blk_time(self.pointer, &mut tsc, &mut mtc, &mut cyc) };
        // Before the first one, libipt returns 0 or all bits set.
        (status >= 0 && tsc != 0 && tsc >> 56 == 0).then_some(tsc)
    }
}

impl Drop for Decoder<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing else uses it. The image is dropped after it.
        unsafe { libipt::pt_blk_free_decoder(self.pointer) };
        // SAFETY: the pointer that `new` made.
        drop(unsafe { Box::from_raw(self.trace) });
    }
}
