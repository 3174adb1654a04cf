// SPDX-License-Identifier: GPL-2.0-only
//! The trace of a slice: one piece of memory, as libipt needs it, though recordings have it in several pieces.
//!
//! A short slice is copied. A long one, because its PSBs are far apart, only gets addresses: its blocks are copied when they are
//! read, and few of them are kept. So memory does not depend on the distance of PSBs.

use std::collections::VecDeque;
use std::ops::Range;

use memmap2::{Advice, MmapMut, MmapOptions, UncheckedAdvice};

use crate::error::{Error, Result};
use crate::libipt::{Status, Window};
use crate::packets::index::Run;
use crate::perfdata::Recording;

/// Slices up to this size are copied.
const SHORT: usize = 1 << 20;
/// A multiple of a page.
const BLOCK: usize = 32 << 10;
/// Blocks in memory, at most: libipt, `Replay` and `Scanner` read at different places.
const MOST: usize = 8;
/// This many bytes can be read at each place, unless the trace ends before: more than a packet or a PSB+ has.
const MARGIN: usize = 4 << 10;

/// Packets that are read at any offset.
pub trait Packets {
    /// From an offset on: not all, but at least one packet. Empty: the trace has ended.
    fn at(&mut self, offset: usize) -> &[u8];
    fn size(&self) -> usize;
}

impl Packets for &[u8] {
    fn at(&mut self, offset: usize) -> &[u8] {
        self.get(offset..).unwrap_or_default()
    }

    fn size(&self) -> usize {
        self.len()
    }
}

enum Memory {
    Copy(#[allow(dead_code)] Vec<u8>),
    Addresses(MmapMut),
}

#[repr(C)]
pub struct Trace<'r> {
    /// What libipt may read without `move_window`. First, because libipt knows its address only.
    window: Window,
    /// Owns the memory, which is used through `base` alone: libipt reads it, too.
    memory: Memory,
    base: *mut u8,
    size: usize,
    run: &'r Run,
    recording: &'r Recording,
    /// Offset in the run.
    begin: usize,
    /// What can be read without a look at the blocks.
    ready: Range<usize>,
    /// Blocks in memory; the one that was not read for longest is the first.
    blocks: VecDeque<usize>,
    /// The packets that were written last, and their offset: a block that is copied again gets them again.
    written: (usize, Vec<u8>),
}

impl<'r> Trace<'r> {
    pub fn new(run: &'r Run, range: Range<usize>, recording: &'r Recording) -> Result<Box<Self>> {
        let (begin, size) = (range.start, range.len());
        let (memory, base) = if size <= SHORT {
            let mut bytes = vec![0; size];
            run.copy(begin, recording, &mut bytes);
            let base = bytes.as_mut_ptr();
            (Memory::Copy(bytes), base)
        } else {
            let map = MmapOptions::new().len(size).no_reserve_swap().map_anon();
            let mut map = map.map_err(|e| Error::memory(format_args!("no memory for trace: {e}")))?;
            // Without it, there is only more memory in use.
            let _ = map.advise(Advice::NoHugePage);
            let base = map.as_mut_ptr();
            (Memory::Addresses(map), base)
        };
        let ready = if matches!(memory, Memory::Copy(_)) { 0..size } else { 0..0 };
        let mut trace = Box::new(Self {
            window: Window::new(move_window),
            memory,
            base,
            size,
            run,
            recording,
            begin,
            ready,
            blocks: VecDeque::new(),
            written: (0, Vec::new()),
        });
        trace.show(trace.ready.clone());
        Ok(trace)
    }

    /// The memory, of which only blocks that were read have the trace.
    pub fn range(&self) -> Range<*const u8> {
        self.base.cast_const()..self.base.wrapping_add(self.size).cast_const()
    }

    /// Whether `move_window` is needed to read it.
    pub fn is_long(&self) -> bool {
        matches!(self.memory, Memory::Addresses(_))
    }

    /// Tells libipt what it may read.
    fn show(&mut self, range: Range<usize>) {
        self.window.begin = self.base.wrapping_add(range.start);
        self.window.end = self.base.wrapping_add(range.end);
    }

    /// Overwrites packets. None of them may be in use: synchronize the decoder again afterwards.
    pub fn write(&mut self, offset: usize, packets: &[u8]) {
        let blocks = self.load(offset..offset + packets.len());
        assert!(offset >= blocks.start && offset + packets.len() <= blocks.end);
        self.written = (offset, packets.to_vec());
        self.write_again(blocks);
    }

    /// Writes what was written last, as far as it is in a range.
    fn write_again(&mut self, range: Range<usize>) {
        let (offset, packets) = &self.written;
        for (at, &byte) in (*offset..).zip(packets).filter(|(at, _)| range.contains(at)) {
            // SAFETY: the range is in memory. libipt reads it only within calls.
            unsafe { self.base.add(at).write(byte) };
        }
    }

    /// Copies the blocks of a range, which are few. Returns what they have.
    fn load(&mut self, range: Range<usize>) -> Range<usize> {
        if !self.is_long() {
            return 0..self.size;
        }
        let end = range.end.clamp(1, self.size);
        let (first, last) = (range.start.min(end - 1) / BLOCK, (end - 1) / BLOCK);
        for block in first..=last {
            if let Some(at) = self.blocks.iter().position(|&b| b == block) {
                self.blocks.remove(at);
            } else {
                if self.blocks.len() >= MOST {
                    self.drop_oldest();
                }
                let bytes = self.bytes_of(block);
                // SAFETY: within the memory; there is no other reference to it.
                let to = unsafe { std::slice::from_raw_parts_mut(self.base.add(bytes.start), bytes.len()) };
                self.run.copy(self.begin + bytes.start, self.recording, to);
                self.write_again(bytes);
            }
            self.blocks.push_back(block);
        }
        first * BLOCK..self.size.min((last + 1) * BLOCK)
    }

    fn bytes_of(&self, block: usize) -> Range<usize> {
        block * BLOCK..self.size.min((block + 1) * BLOCK)
    }

    fn drop_oldest(&mut self) {
        let Some(block) = self.blocks.pop_front() else { return };
        let bytes = self.bytes_of(block);
        // Neither may read it any more: it would be zeros.
        self.ready = 0..0;
        self.show(0..0);
        if let Memory::Addresses(map) = &self.memory {
            // SAFETY: no reference to the block is left, and it is copied again before it is read. If this fails, more memory
            // is in use.
            let _ =
                unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, bytes.start, bytes.len()) };
        }
    }
}

impl Packets for Trace<'_> {
    fn at(&mut self, offset: usize) -> &[u8] {
        if offset >= self.size {
            return &[];
        }
        if !self.ready.contains(&offset) || self.ready.end < self.size.min(offset + MARGIN) {
            self.ready = self.load(offset..offset + MARGIN);
        }
        // SAFETY: it is in memory, and stays there until the trace is used again.
        unsafe { std::slice::from_raw_parts(self.base.add(offset), self.ready.end - offset) }
    }

    fn size(&self) -> usize {
        self.size
    }
}

/// libipt reads at a place outside the window.
extern "C" fn move_window(window: *mut Window, place: *const u8) -> Status {
    // SAFETY: libipt passes the window of a trace, its first field, and nothing else uses the trace during libipt's calls.
    let trace = unsafe { &mut *window.cast::<Trace>() };
    let offset = place as usize - trace.base as usize;
    let blocks = trace.load(offset..offset + MARGIN);
    trace.show(blocks);
    0
}
