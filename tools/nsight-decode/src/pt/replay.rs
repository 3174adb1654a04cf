// SPDX-License-Identifier: GPL-2.0-only
//! Finds the packet of each branch, and its time.
//!
//! libipt reports where execution went. How far it has read ahead by then, and so the time that it reports, depends on
//! its version and on the packets that follow. This module reads the packets a second time: one for each branch and
//! event that libipt reports.

use super::bounds::All;
use super::clock::{Clock, Rates};
use super::mark::Mark;
use super::trace::Packets;
use crate::packets::index;
use crate::packets::kinds::{packet, Kind};

/// The look-ahead reads at most this many packets per byte of trace. If code is missing, it starts again at each packet
/// with an address, up to the same TSC; without TSCs, the work would be quadratic in the size of the trace.
const AHEAD: u64 = 2048;

/// What a branch or event needs from the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Whether a branch was taken.
    Taken,
    /// Where a branch went.
    Target,
    /// A return: either of these, if returns are compressed.
    Return,
    Interrupt,
    Enable,
    Disable,
    /// With or without the address at which tracing continues.
    Overflow(bool),
}

/// What the packets showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Another packet than before.
    Packet,
    /// A further branch from the same packet.
    Rest,
    /// There is no such packet: the branch or event did not happen.
    Nothing,
    /// The packets contradict libipt's report.
    Contradiction,
}

#[derive(Clone, Debug)]
pub struct Replay {
    clock: Clock,
    /// The first unused packet that has more than time.
    pub at: usize,
    /// The first packet from there on that reports a branch or event.
    pub next: usize,
    /// The packet at an offset: kind and length, so that it is read once.
    head: Option<(usize, Kind, usize)>,
    /// Unused branches of the last TNT packet.
    branches: u32,
    /// TSC at the last packet with a branch or event.
    pub tsc: Option<u64>,
    /// TSC of the first TSC packet after that one, if it comes before the next packet with a branch or event.
    pub next_tsc: Option<u64>,
    /// TSC of the last packet that gave one, and its value before the last overflow.
    told_tsc: Option<u64>,
    pub before_overflow: Option<u64>,
    /// TSC at the last CBR packet.
    pub cbr_tsc: Option<u64>,
    /// If a FUP comes next, it belongs to a used packet.
    bound: bool,
    /// Packets read by the look-ahead.
    n_ahead: u64,
    /// Which TSCs can be right.
    bounds: All,
    /// TSC packets that were not used, and up to where they are counted.
    pub n_damaged: u64,
    counted: usize,
}

impl Replay {
    pub fn new(rates: Rates) -> Self {
        Self {
            clock: Clock::new(rates),
            at: 0,
            next: 0,
            head: None,
            branches: 0,
            tsc: None,
            next_tsc: None,
            told_tsc: None,
            before_overflow: None,
            cbr_tsc: None,
            bound: false,
            n_ahead: 0,
            bounds: All::default(),
            n_damaged: 0,
            counted: 0,
        }
    }

    pub fn within(self, bounds: All) -> Self {
        Self { bounds, ..self }
    }

    /// Begins at a PSB, with its time.
    pub fn begin(&mut self, trace: &mut impl Packets, at: usize) {
        let bounds = self.bounds.clone();
        let tsc = index::header(trace.at(at)).tsc.filter(|&tsc| bounds.at(at).contain(tsc));
        let (n_ahead, n_damaged, counted) = (self.n_ahead, self.n_damaged, self.counted);
        *self = Self { at, tsc, n_ahead, n_damaged, counted, bounds, ..Self::new(self.clock.rates()) };
        self.clock.bounds = self.bounds.at(at);
        self.pass(trace);
        self.next = self.look_beside(trace);
    }

    /// Skips packets that report neither branch nor event. Even if there is a PSB between, a decoder that begins there
    /// finds the same packet.
    fn look_beside(&self, trace: &mut impl Packets) -> usize {
        let (mut at, mut bound, mut header) = (self.at, self.bound, false);
        let mut next = self.head(trace);
        while let Some((kind, length)) = next {
            match kind {
                Kind::Psb => header = true,
                Kind::PsbEnd => header = false,
                Kind::Overflow => break,
                _ if header => {}
                Kind::Bound => bound = true,
                Kind::Fup if bound => bound = false,
                Kind::Other => {}
                _ => break,
            }
            at += length;
            next = packet(trace.at(at));
        }
        at
    }

    /// The packet at `at`.
    fn head(&self, trace: &mut impl Packets) -> Option<(Kind, usize)> {
        match self.head {
            Some((at, kind, length)) if at == self.at => Some((kind, length)),
            _ => packet(trace.at(self.at)),
        }
    }

    /// Uses the packet of a branch or event.
    pub fn take(&mut self, trace: &mut impl Packets, need: Need) -> Told {
        if self.branches > 0 && matches!(need, Need::Taken | Need::Return) {
            self.branches -= 1;
            return Told::Rest;
        }
        // Usually, it is the first one.
        match (self.head(trace), need) {
            (Some((Kind::Tnt(n @ 1..), length)), Need::Taken | Need::Return) => {
                self.branches = n - 1;
                self.use_up_to(trace, self.at + length);
                return Told::Packet;
            }
            (Some((Kind::Tip, length)), Need::Target | Need::Return) => {
                self.use_up_to(trace, self.at + length);
                return Told::Packet;
            }
            _ => {}
        }
        let mut next = self.clone();
        let told = next.find(trace, need);
        if told == Told::Packet {
            next.use_up_to(trace, next.at);
            *self = next;
        }
        told
    }

    /// TSC at a packet that reports no branch, and its end: the next of its kind before one that does. Execution may not
    /// have reached it yet.
    pub fn mark(&mut self, trace: &mut impl Packets, mark: Mark) -> Option<(Option<u64>, usize)> {
        let mut next = self.clone();
        if !next.find_mark(trace, mark) {
            return None;
        }
        let found = (next.clock.now(), next.at);
        next.next_tsc = None;
        next.pass(trace);
        // `next.next` still holds: only packets before it were used. To look for it again would take as long as there are marks
        // before it, for each of them.
        *self = next;
        Some(found)
    }

    fn use_up_to(&mut self, trace: &mut impl Packets, end: usize) {
        self.tsc = self.clock.now();
        (self.at, self.next_tsc, self.bound) = (end, None, false);
        self.pass(trace);
        self.next = self.look_beside(trace);
    }

    fn find(&mut self, trace: &mut impl Packets, need: Need) -> Told {
        let is_branch = matches!(need, Need::Taken | Need::Target | Need::Return);
        let mut overflow = false;
        loop {
            self.pass(trace);
            let Some((kind, length)) = self.head(trace) else { return Told::Nothing };
            self.at += length;
            if kind == Kind::Overflow {
                self.before_overflow = self.told_tsc;
            }
            match (kind, need) {
                (Kind::Tnt(0), _) => {}
                (Kind::Tnt(n), Need::Taken | Need::Return) => {
                    self.branches = n - 1;
                    return Told::Packet;
                }
                // It may come before a TIP of earlier code.
                (Kind::Tnt(n), Need::Target) if self.branches == 0 => self.branches = n,
                (Kind::Tip, Need::Target | Need::Return | Need::Interrupt)
                | (Kind::Enable, Need::Enable)
                | (Kind::Disable, Need::Disable)
                | (Kind::Overflow, Need::Overflow(false)) => return Told::Packet,
                (Kind::Overflow, Need::Overflow(true)) => {
                    self.branches = 0;
                    overflow = true;
                }
                (Kind::Fup, Need::Overflow(true)) if overflow => return Told::Packet,
                (Kind::Fup, _) if self.bound || !is_branch => self.bound = false,
                (Kind::Bound, _) => self.bound = true,
                (Kind::Other | Kind::Psb | Kind::PsbEnd, _) => {}
                // An event comes first: there is no packet for the branch.
                (Kind::Fup | Kind::Enable | Kind::Disable | Kind::Overflow, _) if is_branch => {
                    return Told::Nothing;
                }
                _ => return Told::Contradiction,
            }
        }
    }

    fn find_mark(&mut self, trace: &mut impl Packets, mark: Mark) -> bool {
        loop {
            self.pass(trace);
            let Some((kind, length)) = self.head(trace) else { return false };
            let found = mark.is_in(&trace.at(self.at)[..length]);
            self.bound |= kind == Kind::Bound;
            match kind {
                _ if found => {}
                Kind::Fup if self.bound => self.bound = false,
                Kind::Bound | Kind::Other | Kind::Psb | Kind::PsbEnd => {}
                _ => return false,
            }
            self.at += length;
            if found {
                return true;
            }
        }
    }

    /// Skips packets that have only time, and PSB+.
    fn pass(&mut self, trace: &mut impl Packets) {
        let mut header = false;
        loop {
            let all = trace.at(self.at);
            let Some((kind, length)) = packet(all) else { return };
            let bytes = &all[..length];
            let mut told = false;
            match kind {
                Kind::Psb => {
                    header = true;
                    self.clock.bounds = self.bounds.at(self.at);
                }
                // There was no PSB that it could end.
                Kind::PsbEnd => header = false,
                // An overflow may also end a PSB+.
                Kind::Overflow => return self.head = Some((self.at, kind, length)),
                _ if !header && (kind != Kind::Other || index::status_packet(bytes).is_none()) => {
                    return self.head = Some((self.at, kind, length));
                }
                _ => told = self.clock.take(bytes),
            }
            if matches!(bytes, [0x19, ..]) && !told && (self.counted..self.bounds.end).contains(&self.at) {
                self.n_damaged += 1;
                self.counted = self.at + length;
            }
            self.at += length;
            if matches!(bytes, [2, 0x03, ..]) {
                self.cbr_tsc = self.clock.now();
            }
            if matches!(bytes, [0x19, ..]) && told && self.next_tsc.is_none() {
                self.next_tsc = self.clock.now();
            }
            if told {
                self.told_tsc = self.clock.now();
                self.look_ahead(trace);
            }
        }
    }

    /// Adjusts the clock between two packets that give a TSC, so that it is right at both.
    fn look_ahead(&mut self, trace: &mut impl Packets) {
        let (mut clock, mut at, mut lost) = (self.clock.clone(), self.at, false);
        let most = AHEAD * trace.size() as u64;
        while let Some((kind, length)) = packet(trace.at(at)).filter(|_| self.n_ahead < most) {
            self.n_ahead += 1;
            let bytes = &trace.at(at)[..length];
            let cycles = clock.cycles();
            if clock.take(bytes) {
                self.clock.look_ahead(&clock, cycles, lost);
                return;
            }
            lost |= kind == Kind::Overflow;
            at += length;
        }
    }
}

#[cfg(test)]
mod tests;
