// SPDX-License-Identifier: GPL-2.0-only
//! The time of what runs, from packets that tell of more than that.

use super::{Code, Result, State, Status, What, STALL_NS, STALL_RATE};
use crate::perfdata::widen;
use crate::pt::ffi::status;
use crate::pt::index;

impl State<'_, '_> {
    /// Whether the branch at the end of a block had a packet, and its time where libipt has gone on
    /// to an event behind it, which may be as late as the end of a long halt.
    pub(super) fn branch_time(&mut self, offset: usize, status: Status) -> Option<Option<u64>> {
        let trace = self.decoder.trace();
        let from = |offset: usize| trace.get(offset - self.base..).unwrap_or_default();
        if offset == self.offset || !index::is_branch(from(self.offset)) {
            return None;
        }
        if status < 0 || status & status::EVENT_PENDING == 0 {
            return Some(None);
        }
        // Cycles between the packet before and this one.
        let mut at = self.offset_before + index::length(from(self.offset_before));
        let mut cycles = 0;
        while at < self.offset {
            let bytes = from(at);
            cycles += index::cycles(bytes);
            let length = index::status_packet(bytes).filter(|_| !index::is_tsc(bytes));
            let Some(length) = length else { return Some(Some(self.now)) };
            at += length;
        }
        let nominal = self.walker.recording.info.max_non_turbo.max(1);
        let ticks = cycles * nominal / self.decoder.ratio().unwrap_or(nominal).max(1);
        let tsc = self.tsc.wrapping_add(ticks);
        let time = self.walker.recording.info.conv.ns(widen(tsc, self.reference));
        Some(Some(time.max(self.now)))
    }

    /// How far packets are read, and the time they tell.
    pub(super) fn read_time(&mut self) {
        let offset = self.read_offset();
        self.read_time_at(offset);
    }

    /// Of the next packet that libipt will read, in the run.
    pub(super) fn read_offset(&self) -> usize {
        self.base + self.decoder.offset()
    }

    /// As `read_time`; `offset` is `read_offset()`.
    pub(super) fn read_time_at(&mut self, offset: usize) {
        if offset != self.offset {
            self.offset_before = self.offset;
            self.offset = offset;
            self.idle = 0;
        }
        if let Some(tsc) = self.decoder.tsc() {
            self.set_tsc(tsc);
        }
    }

    pub(super) fn set_tsc(&mut self, tsc: u64) {
        if tsc != self.tsc {
            self.tsc = tsc;
            self.packet_time = self.walker.recording.info.conv.ns(widen(tsc, self.reference));
        }
    }

    /// Execution has come to a place whose time is known. What needs no packet since the last one
    /// happened then: packets that tell of no place, as those at the end of a halt, do not count.
    pub(super) fn advance(&mut self, time: u64) -> Result<()> {
        self.output.n_before.get_or_insert(self.output.items.len());
        self.go_on(time)
    }

    pub(super) fn go_on(&mut self, time: u64) -> Result<()> {
        if time == self.now {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.now, time);
        let passed = time.saturating_sub(before);
        if passed >= STALL_NS && passed / STALL_RATE > self.insns_since && !self.recent.is_empty() {
            self.stall(before, passed);
        }
        self.recent.clear();
        self.insns_since = 0;
        self.output.items.append(&mut self.marks);
        if self.cursor.pass(self.now) {
            self.task();
        }
        if self.now >= self.image.until {
            self.show_image(false)?;
        }
        Ok(())
    }

    /// The packets' time is that of what runs.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        self.read_time();
        self.go_on(self.packet_time)
    }

    pub(super) fn stall(&mut self, since: u64, ns: u64) {
        let (class, address) = self.walker.insns.stall(&self.recent.in_order());
        let value = ns.min((1 << 56) - 1) | (class as u64) << 56;
        for (code, value) in [(Code::Stall, value), (Code::StallAt, address)] {
            self.push(What::Event(code), value, 0);
            if let Some(item) = self.output.items.last_mut() {
                item.time = since;
            }
        }
    }
}
