// SPDX-License-Identifier: GPL-2.0-only
//! Events that libipt reports between blocks: interrupts, begin and end of tracing, losses, power.

use super::{Code, Item, Kind, Result, State, What, KERNEL_BEGIN, NOWHERE};
use crate::edges::power;
use crate::libipt::{self, event};
use crate::pt::mark::Mark;
use crate::pt::replay::Need;

impl State<'_, '_> {
    /// `ip`: where execution was before the event.
    pub(super) fn event(&mut self, e: &libipt::Event, ip: u64) -> Result<()> {
        match e.kind {
            // A PSB repeats the state; nothing happened there. libipt reports such events since 2.1.
            event::ENABLED | event::DISABLED if e.status_update() => {}
            event::ENABLED => {
                self.recent.clear();
                if self.replay.next_tsc.is_some() && !self.contradicted {
                    // A PSB+ between the overflow and this packet tells the time, even if it is that of the overflow.
                    self.overflowed = None;
                }
                self.told(Need::Enable)?;
                self.end_overflow()?;
                self.pending = None;
                self.entry = false;
                self.resume();
                let ip = e.variant[0];
                if ip < KERNEL_BEGIN {
                    self.show_image(true)?;
                }
                self.function = self.walker.images.symbol(&self.image, ip);
                let to_sym = self.function.id;
                self.push_edge(What::Edge(Kind::TraceBegin), 0, ip, 0, to_sym);
            }
            event::DISABLED => {
                let from = self.pending.take().map_or(self.end_ip, |p| p.from);
                self.told(Need::Disable)?;
                self.trace_end(from, e.variant[0], e.ip_suppressed());
            }
            event::ASYNC_DISABLED => {
                self.arrive(e.variant[0])?;
                self.told(Need::Disable)?;
                self.trace_end(e.variant[0], e.variant[1], e.ip_suppressed());
            }
            event::ASYNC_BRANCH => {
                let (from, to) = (e.variant[0], e.variant[1]);
                self.arrive(from)?;
                self.told(Need::Interrupt)?;
                if e.ip_suppressed() {
                    self.trace_end(from, 0, true);
                    return Ok(());
                }
                let from_sym = self.symbol_of_source(from);
                self.function = self.walker.images.symbol(&self.image, to);
                let to_sym = self.function.id;
                self.push_edge(What::Edge(Kind::Interrupt), from, to, from_sym, to_sym);
            }
            event::OVERFLOW => {
                self.leave_at_loss(ip)?;
                self.recent.clear();
                self.told_by(Need::Overflow(!e.ip_suppressed()));
                // The overflow began after the last packet of time, too.
                if let Some(tsc) = self.replay.before_overflow.filter(|_| !self.contradicted) {
                    self.go_on(self.in_ns(tsc))?;
                }
                self.overflowed = Some(self.now);
                self.push(What::Event(Code::Overflow), 0, 0);
                self.advance(self.packet_time)?;
                if !e.ip_suppressed() {
                    self.end_overflow()?;
                    self.entry = false;
                    self.resume();
                    let ip = e.variant[0];
                    self.show_image(ip < KERNEL_BEGIN)?;
                    self.function = self.walker.images.symbol(&self.image, ip);
                    let to_sym = self.function.id;
                    self.push_edge(What::Edge(Kind::TraceBegin), 0, ip, 0, to_sym);
                }
            }
            event::PAGING | event::ASYNC_PAGING => {
                let guest = e.variant[1] & 1 != 0;
                if guest && !self.in_guest {
                    self.push(What::Event(Code::Guest), 0, 0);
                }
                self.in_guest = guest;
            }
            event::STOP => {}
            event::PTWRITE => {
                let place = self.place(Mark::Ptwrite, e);
                self.mark(place, Code::Ptwrite, e.variant[2], e.variant[0])?;
            }
            event::CBR => {
                let tsc = if self.contradicted { own_tsc(e) } else { self.replay.cbr_tsc };
                self.mark((tsc, self.next), Code::Cbr, e.variant[0] & 0xffff, 0)?;
            }
            event::MWAIT => {
                let place = self.place(Mark::Mwait, e);
                let (hints, extensions) = (e.variant[1] & 0xff, (e.variant[1] >> 32) & 0xff);
                self.mark(place, Code::Power, power::MWAIT | hints | extensions << 32, e.variant[0])?;
            }
            event::PWRE => {
                let (place, v) = (self.place(Mark::Pwre, e), e.variant[0]);
                let value = v & 0xffff | (v >> 32 & 1) << 16;
                self.mark(place, Code::Power, power::PWRE | value, 0)?;
            }
            event::EXSTOP => {
                let place = self.place(Mark::Exstop, e);
                self.mark(place, Code::Power, power::EXSTOP, e.variant[0])?;
            }
            event::PWRX => {
                let (place, v) = (self.place(Mark::Pwrx, e), e.variant[0]);
                let value = v & 0xffff | (v >> 32 & 7) << 16;
                self.mark(place, Code::Power, power::PWRX | value, 0)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the event's packets: execution has reached the event.
    fn told(&mut self, need: Need) -> Result<()> {
        self.told_by(need);
        self.advance(self.packet_time)
    }

    pub(super) fn symbol_of_source(&mut self, ip: u64) -> u32 {
        if (self.function.start..self.function.end).contains(&ip) {
            self.function.id
        } else {
            self.walker.images.symbol(&self.image, ip).id
        }
    }

    pub(super) fn trace_end(&mut self, from: u64, to: u64, suppressed: bool) {
        let from_sym = self.symbol_of_source(from);
        let to = if suppressed { 0 } else { to };
        self.push_edge(What::Edge(Kind::TraceEnd), from, to, from_sym, 0);
        self.function = NOWHERE;
    }

    /// Packets are lost from here on. The last branch is known if it was executed, even if no code follows.
    fn leave_at_loss(&mut self, ip: u64) -> Result<()> {
        if self.pending.as_ref().is_some_and(|p| p.executed) {
            self.arrive(ip)?;
        }
        self.pending = None;
        Ok(())
    }

    /// Time and end of the mark's packet: the time that libipt reports is an estimate.
    fn place(&mut self, mark: Mark, e: &libipt::Event) -> (Option<u64>, usize) {
        if self.contradicted {
            return (own_tsc(e), self.next);
        }
        match self.replay.mark(self.decoder.trace(), mark) {
            Some((tsc, end)) => (tsc, self.base + end),
            None => (self.replay.tsc, self.next),
        }
    }

    /// Adds a mark, which packets report besides branches. Marks at the end of a halt come after the code that ran
    /// before it.
    fn mark(&mut self, (tsc, offset): (Option<u64>, usize), code: Code, from: u64, to: u64) -> Result<()> {
        let time = tsc.map_or(self.packet_time, |tsc| self.in_ns(tsc));
        let item = Item { time, from, to, from_sym: 0, to_sym: 0, what: What::Event(code), offset };
        if time <= self.now {
            self.output.items.push(Item { time: self.now, ..item });
        } else {
            self.marks.push(item);
        }
        self.hand_on_marks(offset)
    }
}

fn own_tsc(e: &libipt::Event) -> Option<u64> {
    e.has_tsc().then_some(e.tsc)
}
