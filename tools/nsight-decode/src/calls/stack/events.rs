// SPDX-License-Identifier: GPL-2.0-only
//! Trace events other than calls: losses, stalls, and marks such as the core's frequency.

use super::super::row::{Kind, Known};
use super::super::texts::Texts;
use super::{Core, Gap, OVERFLOW};
use crate::edges::{Code, Event};
use crate::insn::Stall;

impl Core {
    pub fn event(&mut self, event: &Event, texts: &mut Texts) {
        match event.code {
            Code::DecodeError => self.lose(event.time, "not decoded"),
            Code::Overflow => self.lose(event.time, OVERFLOW),
            Code::Guest => self.lose(event.time, "virtual machine"),
            Code::Skipped => self.lose(event.time, "outside of the windows"),
            // The missing part lies between an end and a begin of the trace.
            Code::AuxTruncated => {
                if let Some(gap) = &mut self.gap {
                    (gap.lost, gap.cause) = (true, "trace buffer full");
                }
            }
            Code::Stall => self.stall(event, texts),
            Code::StallAt => {
                if let Some(row) = self.rows.last_mut().filter(|r| r.kind == Kind::Stall) {
                    row.address = event.value;
                }
            }
            Code::Until => self.runs_until(event),
            Code::Ptwrite => _ = self.mark(Kind::Ptwrite, event, texts),
            Code::Power => _ = self.mark(Kind::Power, event, texts),
            Code::Cbr if self.ratio != Some(event.value) => {
                self.ratio = Some(event.value);
                // The CBR at the begin of a trace comes before the thread is known.
                self.early_ratio = if self.mark(Kind::Frequency, event, texts) { None } else { self.ratio };
            }
            Code::Cbr | Code::LostRecords | Code::SwitchIn | Code::SwitchOut | Code::AuxPartial => {}
        }
    }

    /// Nothing is known from `time` on. What ran before it was decoded, even without an edge.
    fn lose(&mut self, time: u64, cause: &'static str) {
        self.last = self.last.max(time);
        let start = self.gap.map_or(self.last, |gap| gap.start);
        self.gap = Some(Gap { start, lost: true, cause });
    }

    /// The end time of an overflow becomes known: from the first edge, a stop, or packets.
    pub(super) fn lasts_until(&mut self, time: u64) {
        // Unless the trace ended again, or was lost, before: what is known then is where it had begun.
        let Some(untold) = self.untold.take().filter(|_| self.gap.is_none()) else { return };
        self.row(untold).end = time;
        let first = (untold - self.base) as usize + 1;
        for row in &mut self.rows[first..] {
            // A call that already returned has ended: its end moves too.
            (row.start, row.end) = (time, time);
        }
        self.last = time;
    }

    /// What ran last was decoded up to here.
    fn runs_until(&mut self, event: &Event) {
        let runs = self.thread.is_some_and(|(_, _, tid)| tid == event.tid);
        if self.gap.is_none() && runs && event.time > self.last {
            self.lasts_until(event.time);
            self.last = event.time;
            self.apart = true;
        }
    }

    fn stall(&mut self, event: &Event, texts: &mut Texts) {
        if self.gap.is_some() || self.thread.is_none() {
            return;
        }
        let class = (event.value >> 56) as usize;
        let class = Stall::NAMES.get(class).copied().unwrap_or(Stall::Unknown.name());
        let start = event.time.max(self.last);
        let end = event.time.saturating_add(event.value & ((1 << 56) - 1)).max(start);
        self.last = end;
        self.apart = true;
        if self.untold.is_some() {
            return self.lasts_until(end);
        }
        let (symbol, dso) = (texts.number(class), texts.number(""));
        let row = self.open(Kind::Stall, symbol, dso, start, Known::Measured);
        (self.row(row).cause, self.row(row).before) = (symbol, self.before);
        self.close(row, end, Known::Measured);
    }

    /// Adds a separate row without length; adds none while the current thread is not known.
    fn mark(&mut self, kind: Kind, event: &Event, texts: &mut Texts) -> bool {
        if self.gap.is_some() || self.thread.is_none() {
            return false;
        }
        let time = event.time.max(self.last);
        self.lasts_until(time);
        self.mark_row(kind, event.value, time, texts);
        self.last = time;
        true
    }

    pub(super) fn mark_row(&mut self, kind: Kind, value: u64, time: u64, texts: &mut Texts) {
        let (symbol, dso) = (texts.number(kind.name()), texts.number(""));
        let row = self.open(kind, symbol, dso, time, Known::Measured);
        self.row(row).arg = value as i64;
        self.close(row, time, Known::Measured);
    }
}
