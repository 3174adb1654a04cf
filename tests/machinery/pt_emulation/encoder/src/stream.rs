// SPDX-License-Identifier: GPL-2.0-only
//! Packets in time: the packets that must precede a packet because of the time at which it is sent.

use std::collections::BTreeMap;

use crate::options::{Options, CBR};
use crate::packet::{Buffer, Packet};

/// Where a decoder can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncPoint {
    pub offset: usize,
    pub tsc: u64,
}

/// One CPU's packets with their times; this type does not know about branches.
pub struct Stream<'a> {
    options: &'a Options,
    pub buffer: Buffer,
    pub counts: BTreeMap<&'static str, u64>,
    pub syncs: Vec<SyncPoint>,
    last_psb: usize,
    /// The time in the last CYC or TSC.
    told: u64,
    /// The last tick of the core crystal clock in an MTC or TMA.
    ctc: u64,
    tnt: u64,
    n_tnt: u32,
    /// Time of the oldest branch that waits for a TNT packet.
    pub oldest: u64,
}

impl<'a> Stream<'a> {
    pub fn new(options: &'a Options) -> Self {
        Self {
            options,
            buffer: Buffer::default(),
            counts: BTreeMap::new(),
            syncs: Vec::new(),
            last_psb: 0,
            told: 0,
            ctc: 0,
            tnt: 0,
            n_tnt: 0,
            oldest: 0,
        }
    }

    fn push(&mut self, packet: Packet) {
        *self.counts.entry(packet.name()).or_default() += 1;
        self.buffer.push(packet);
    }

    /// Adds the cycle count before a packet at `tsc`.
    fn cyc(&mut self, tsc: u64) {
        let cycles = tsc.saturating_sub(self.told);
        if self.options.cyc && cycles >= self.options.min_cycles() {
            self.push(Packet::Cyc(cycles));
            self.told = tsc;
        }
    }

    /// Adds a packet with a cycle count.
    pub fn stamped(&mut self, tsc: u64, packet: Packet) {
        self.flush(tsc);
        self.cyc(tsc);
        self.push(packet);
    }

    /// Adds the bit of a branch.
    pub fn bit(&mut self, tsc: u64, taken: bool) {
        if self.n_tnt == 0 {
            self.oldest = tsc;
        }
        self.tnt = self.tnt << 1 | u64::from(taken);
        self.n_tnt += 1;
        if self.n_tnt == self.options.tnt_bits {
            self.flush(tsc);
        }
    }

    /// Send the waiting bits: later packets must come after them.
    pub fn flush(&mut self, tsc: u64) {
        if self.n_tnt > 0 {
            self.cyc(tsc);
            self.push(Packet::Tnt { bits: self.tnt, n: self.n_tnt });
            self.drop_bits();
        }
    }

    /// Whether branches wait for their packet.
    pub fn has_bits(&self) -> bool {
        self.n_tnt > 0
    }

    pub fn drop_bits(&mut self) {
        (self.tnt, self.n_tnt) = (0, 0);
    }

    /// Adds MTC packets up to `tsc`. Waiting bits stay.
    pub fn tick(&mut self, tsc: u64) {
        if !self.options.mtc {
            return;
        }
        let period = 1 << self.options.mtc_period;
        loop {
            let next = (self.ctc / period + 1) * period;
            let at = next * u64::from(self.options.tsc_ctc_n);
            if at > tsc {
                return;
            }
            self.cyc(at.max(self.told));
            self.push(Packet::Mtc((next >> self.options.mtc_period) as u8));
            self.ctc = next;
        }
    }

    /// A time for a TSC packet: later than the last time sent. perf counts cycles from the CYC directly before the TSC
    /// packet, and keeps the later of the two times. With a CYC that the TSC does not include, perf would be ahead by
    /// one more tick at each PSB.
    fn later(&self, tsc: u64) -> u64 {
        if self.options.cyc {
            tsc.max(self.told + 1)
        } else {
            tsc
        }
    }

    /// TSC and the packets that belong to it. Because of the CYC directly before it, perf counts cycles from here.
    fn time(&mut self, tsc: u64) {
        self.push(Packet::Tsc(tsc));
        self.told = tsc;
        let (ctc, fast_counter) = self.options.ctc(tsc);
        if self.options.mtc {
            self.push(Packet::Tma { ctc: ctc as u16, fast_counter: fast_counter as u16 });
        }
        self.ctc = ctc;
        self.push(Packet::Cbr(CBR));
    }

    /// The clock continues after a halt of the CPU, in which it did not count cycles.
    pub fn wake(&mut self, tsc: u64) {
        self.flush(tsc);
        let tsc = self.later(tsc);
        if self.options.cyc {
            self.push(Packet::Cyc(1));
        }
        self.time(tsc);
    }

    /// PSB to PSBEND. `fup`: the next instruction's address, when it is traced.
    pub fn psb_plus(&mut self, tsc: u64, cr3: u64, fup: Option<u64>) {
        self.flush(tsc);
        self.last_psb = self.buffer.bytes.len();
        self.syncs.push(SyncPoint { offset: self.last_psb, tsc });
        self.push(Packet::Psb);
        let tsc = self.later(tsc);
        if self.options.cyc {
            self.push(Packet::Cyc((tsc - self.told).min(1 << 12)));
        }
        self.time(tsc);
        self.push(Packet::ModeExec64);
        if !self.options.user_only {
            self.push(Packet::Pip { cr3 }); // concerns only the kernel's privilege level
        }
        if let Some(ip) = fup {
            self.push(Packet::Fup(ip));
        }
        self.push(Packet::Psbend);
    }

    /// Whether it is time for the next PSB.
    pub fn is_psb_due(&self) -> bool {
        self.buffer.bytes.len() - self.last_psb >= self.options.psb_every()
    }

    /// After an overflow. Its cycles are not counted: the next PSB has the time.
    pub fn overflow(&mut self, tsc: u64, fup: Option<u64>) {
        self.push(Packet::Ovf);
        self.told = tsc;
        self.ctc = self.options.ctc(tsc).0;
        if let Some(ip) = fup {
            self.push(Packet::Fup(ip));
        }
    }

    /// Number of bytes so far.
    pub fn position(&self) -> usize {
        self.buffer.bytes.len()
    }
}
