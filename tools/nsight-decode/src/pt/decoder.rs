// SPDX-License-Identifier: GPL-2.0-only
//! libipt's block decoder, safe to use.

use std::os::raw::c_int;
use std::rc::Rc;

use crate::code::Image;
use crate::error::{Error, Result};
use crate::libipt;
use crate::perfdata::Recording;

/// Decodes the packets of one piece of trace.
pub struct Decoder {
    pointer: *mut libipt::BlockDecoder,
    /// In use by libipt as long as it is set.
    image: Option<Rc<Image>>,
    /// Of a `Vec`, as a pointer: libipt reads what `patch` writes.
    trace: *mut [u8],
}

/// What libipt's functions return: flags, or an error code as a negative number.
pub type Status = c_int;

/// How packets tell time, and the CPU's errata.
pub fn config(trace: &[u8], recording: &Recording) -> libipt::Config {
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

impl Decoder {
    pub fn new(trace: Vec<u8>, recording: &Recording) -> Result<Self> {
        let trace = Box::into_raw(trace.into_boxed_slice());
        // SAFETY: the configuration is copied; the trace outlives the decoder.
        let pointer = unsafe { libipt::pt_blk_alloc_decoder(&config(&*trace, recording)) };
        if pointer.is_null() {
            // SAFETY: as it was made.
            drop(unsafe { Box::from_raw(trace) });
            return Err(Error::memory("libipt: no decoder (out of memory, or its configuration is refused)"));
        }
        Ok(Self { pointer, image: None, trace })
    }

    pub fn trace(&self) -> &[u8] {
        // SAFETY: `patch`, which writes, wants it for itself.
        unsafe { &*self.trace }
    }

    /// Other packets at an offset. None of them may be in use: the decoder is to be set anew.
    pub fn patch(&mut self, offset: usize, packets: &[u8]) {
        // SAFETY: libipt reads while it is called, and does not write.
        let trace = unsafe { &mut *self.trace };
        trace[offset..offset + packets.len()].copy_from_slice(packets);
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
        // libipt leaves the block alone where it fails early.
        block.ninsn = 0;
        // SAFETY: the decoder and its trace exist.
        unsafe { libipt::pt_blk_next(self.pointer, block, std::mem::size_of::<libipt::Block>()) }
    }

    pub fn event(&mut self, event: &mut libipt::Event) -> Status {
        unsafe { libipt::pt_blk_event(self.pointer, event, std::mem::size_of::<libipt::Event>()) }
    }

    /// Where execution has come to: behind the last block, or where its branch led.
    pub fn ip(&self) -> u64 {
        let mut ip = 0;
        unsafe { libipt::pt_blk_get_ip(self.pointer, &mut ip) };
        ip
    }

    /// How far the packets are read. 0: nothing yet.
    pub fn offset(&self) -> usize {
        let mut offset = 0;
        unsafe { libipt::pt_blk_get_offset(self.pointer, &mut offset) };
        offset as usize
    }

    /// TSC (56 bits) of the last packet that told time. None before the first.
    pub fn tsc(&mut self) -> Option<u64> {
        let (mut tsc, mut mtc, mut cyc) = (0, 0, 0);
        let status = unsafe { libipt::pt_blk_time(self.pointer, &mut tsc, &mut mtc, &mut cyc) };
        // Before the first, libipt gives 0 or all bits.
        (status >= 0 && tsc != 0 && tsc >> 56 == 0).then_some(tsc)
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: nothing else has it. The image is dropped after it.
        unsafe { libipt::pt_blk_free_decoder(self.pointer) };
        // SAFETY: as `new` made it.
        drop(unsafe { Box::from_raw(self.trace) });
    }
}
