// SPDX-License-Identifier: GPL-2.0-only
//! The time of the code that runs.

use super::{Code, Need, Result, State, What, STALL_NS, STALL_RATE};
use crate::perfdata::widen;
use crate::pt::replay::Told;

impl State<'_, '_> {
    /// Decoding begins at a PSB.
    pub(super) fn begin(&mut self, at: usize) -> Result<()> {
        self.replay.begin(self.decoder.trace(), at - self.base);
        self.contradicted = false;
        self.is_moved();
        (self.offset, self.next) = (self.base + self.replay.at, self.base + self.replay.next);
        self.set_time(self.replay.tsc);
        self.go_on(self.packet_time)
    }

    /// Takes the packet of a branch or event. If it is a new packet, its time is in `packet_time`.
    pub(super) fn told_by(&mut self, need: Need) -> Told {
        if !self.contradicted {
            match self.replay.take(self.decoder.trace(), need) {
                Told::Packet => {
                    (self.offset, self.next) = (self.base + self.replay.at, self.base + self.replay.next);
                    self.set_time(self.replay.tsc);
                    return Told::Packet;
                }
                told @ (Told::Rest | Told::Nothing) => return told,
                // libipt works around an erratum of the processor: use libipt's result until the next begin.
                Told::Contradiction => {
                    self.contradicted = true;
                    self.output.n_borrowed += 1;
                }
            }
        }
        let moved = self.offset != self.read;
        (self.offset, self.next) = (self.read, self.read);
        let tsc = self.libipt_tsc();
        self.set_time(tsc);
        if moved {
            Told::Packet
        } else {
            Told::Rest
        }
    }

    /// Whether libipt has read packets since the last call.
    pub(super) fn is_moved(&mut self) -> bool {
        let read = self.base + self.decoder.offset();
        let moved = read != self.read;
        if moved {
            self.read = read;
            self.idle = 0;
        }
        moved
    }

    pub(super) fn in_ns(&self, tsc: u64) -> u64 {
        self.walker.recording.info.conv.ns(widen(tsc, self.reference))
    }

    fn set_time(&mut self, tsc: Option<u64>) {
        self.packet_time = tsc.map_or(self.packet_time, |tsc| self.in_ns(tsc));
    }

    /// The TSC that libipt reports, if it can be right.
    fn libipt_tsc(&mut self) -> Option<u64> {
        let bounds = self.bounds.at(self.read - self.base);
        self.decoder.tsc().filter(|&tsc| bounds.contain(tsc))
    }

    /// Advances to the time that libipt reports.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        self.is_moved();
        (self.offset, self.next) = (self.read, self.read);
        let tsc = self.libipt_tsc();
        self.set_time(tsc);
        self.go_on(self.packet_time)
    }

    /// Execution has reached a place whose time is known. Code that needs no packet has the time of the last
    /// such place. Packets that report no place, such as those at the end of a halt, do not count.
    pub(super) fn advance(&mut self, time: u64) -> Result<()> {
        self.output.n_before.get_or_insert(self.output.items.len());
        self.go_on(time)
    }

    pub(super) fn go_on(&mut self, time: u64) -> Result<()> {
        // If the clock was ahead of the next TSC, it stands still until that TSC is reached.
        if time <= self.now {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.now, time);
        let passed = time - before;
        if let Some(at) = self.untold.take() {
            self.output.items[at..].iter_mut().for_each(|item| item.time = time);
        } else if passed >= STALL_NS && passed / STALL_RATE > self.insns_since && !self.recent.is_empty() {
            self.stall(before, passed);
        }
        self.recent.clear();
        self.insns_since = 0;
        self.marks.iter_mut().for_each(|mark| mark.time = mark.time.min(time));
        self.output.items.append(&mut self.marks);
        if self.cursor.pass(self.now) {
            self.task();
        }
        if self.now >= self.image.until {
            self.show_image(false)?;
        }
        Ok(())
    }

    /// Tracing begins, maybe after an overflow. After an overflow, packets may report the place before the time. The
    /// time then comes from a TSC packet directly after it, or from the next packet that reports a branch.
    pub(super) fn end_overflow(&mut self) -> Result<()> {
        let Some(since) = self.overflowed.take().filter(|&since| since >= self.now) else { return Ok(()) };
        if let Some(tsc) = self.replay.next_tsc.filter(|_| !self.contradicted) {
            self.set_time(Some(tsc));
            return self.go_on(self.packet_time);
        }
        if self.now <= since {
            // If two overflows follow each other with nothing between, keep the first.
            self.untold.get_or_insert(self.output.items.len());
        }
        Ok(())
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
