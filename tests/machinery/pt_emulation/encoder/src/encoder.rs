// SPDX-License-Identifier: GPL-2.0-only
//! Encodes events as packets: what is traced, and what is filtered or lost.

use pt_events::{Event, Kind};
use serde::Serialize;

use crate::options::{Options, Window};
use crate::packet::Packet;
use crate::returns::Returns;
use crate::stream::{Stream, SyncPoint};

/// A piece of AUX data as perf takes it from the buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chunk {
    pub offset: usize,
    pub size: usize,
    /// Time of its end.
    pub tsc: u64,
    /// `PERF_AUX_FLAG_*`.
    pub flags: u64,
}

pub const AUX_FLAG_TRUNCATED: u64 = 1;
pub const AUX_FLAG_OVERWRITE: u64 = 2;

/// An interval in which packets are missing on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Injected {
    pub kind: &'static str,
    pub cpu: usize,
    /// The first missing branch is not earlier than this.
    pub tsc_start: u64,
    /// From this time on, a decoder can follow again.
    pub tsc_end: u64,
}

/// The packets for one CPU's events.
#[derive(Debug, Default)]
pub struct Encoded {
    pub bytes: Vec<u8>,
    pub chunks: Vec<Chunk>,
    pub injected: Vec<Injected>,
    pub packets: std::collections::BTreeMap<&'static str, u64>,
    pub syncs: Vec<SyncPoint>,
}

#[derive(PartialEq)]
enum Losing {
    No,
    /// Start time, end time.
    Overflow(u64, u64),
    Truncated(u64, u64),
    /// End time.
    Off(u64),
}

struct Encoder<'a> {
    options: &'a Options,
    cpu: usize,
    stream: Stream<'a>,
    returns: Returns,
    chunks: Vec<Chunk>,
    injected: Vec<Injected>,
    overflows: std::slice::Iter<'a, Window>,
    truncations: std::slice::Iter<'a, Window>,
    next_overflow: Option<&'a Window>,
    next_truncation: Option<&'a Window>,
    offs: std::iter::Peekable<std::slice::Iter<'a, Window>>,
    losing: Losing,
    /// TraceEn: between Enable and Disable.
    on: bool,
    /// PacketEn: `on`, and in code that is not filtered out.
    telling: bool,
    cr3: u64,
    /// Where execution is: the begin of the straight-line code after the last branch.
    ip: u64,
    chunk_start: usize,
}

/// Encode the events of one CPU. Windows of `options` must be in order and must not overlap.
pub fn encode(cpu: usize, events: &[Event], options: &Options) -> Encoded {
    let mut overflows = options.overflow.iter();
    let mut truncations = options.truncate.iter();
    let mut encoder = Encoder {
        options,
        cpu,
        stream: Stream::new(options),
        returns: Returns::default(),
        chunks: Vec::new(),
        injected: Vec::new(),
        next_overflow: overflows.next(),
        next_truncation: truncations.next(),
        overflows,
        truncations,
        offs: options.off.iter().peekable(),
        losing: Losing::No,
        on: false,
        telling: false,
        cr3: 0,
        ip: 0,
        chunk_start: 0,
    };
    for event in events {
        encoder.event(event);
    }
    encoder.finish(events.last().map_or(0, |event| event.tsc))
}

impl Encoder<'_> {
    fn event(&mut self, event: &Event) {
        let tsc = event.tsc;
        if let Kind::Cr3 { value } = event.kind {
            self.cr3 = value;
        }
        if let Some((_, to)) = event.kind.ends() {
            self.ip_after_loss(tsc, to);
        }
        match (&self.losing, event.kind.ends()) {
            (Losing::No, _) => self.tell(event),
            (_, Some((_, to))) => self.resume(tsc, to),
            _ => {}
        }
    }

    /// A loss begins at the first branch of its window; this branch is lost too.
    fn ip_after_loss(&mut self, tsc: u64, _to: u64) {
        if self.losing != Losing::No || !self.on {
            return;
        }
        if let Some(window) = self.next_overflow.filter(|w| w.start <= tsc) {
            self.next_overflow = self.overflows.next();
            let since = if self.stream.has_bits() { self.stream.oldest } else { tsc };
            self.stream.drop_bits();
            self.losing = Losing::Overflow(since, window.end);
        } else if let Some(window) = self.next_truncation.filter(|w| w.start <= tsc) {
            self.next_truncation = self.truncations.next();
            self.disable(tsc, self.ip);
            self.cut(tsc, AUX_FLAG_TRUNCATED);
            self.losing = Losing::Truncated(tsc, window.end);
        } else if let Some(window) = self.offs.next_if(|w| w.start <= tsc) {
            self.disable(tsc, self.ip);
            self.cut(tsc, 0);
            self.losing = Losing::Off(window.end);
        }
    }

    /// A loss is over after the first branch behind it, which leads to `to`.
    fn resume(&mut self, tsc: u64, to: u64) {
        let (kind, since, until) = match self.losing {
            Losing::Overflow(since, until) => ("overflow", since, until),
            Losing::Truncated(since, until) => ("truncation", since, until),
            Losing::Off(until) => ("off", tsc, until),
            Losing::No => return,
        };
        if tsc < until {
            return;
        }
        self.losing = Losing::No;
        self.returns.clear();
        self.ip = to;
        if kind == "off" {
            return self.enable(tsc, to);
        }
        self.injected.push(Injected { kind, cpu: self.cpu, tsc_start: since, tsc_end: tsc });
        if kind == "truncation" {
            return self.enable(tsc, to);
        }
        self.telling = self.options.traces(to);
        self.stream.overflow(tsc, self.telling.then_some(to));
        self.psb(tsc);
    }

    fn tell(&mut self, event: &Event) {
        let tsc = event.tsc;
        match event.kind {
            Kind::Enable { ip, cr3 } => {
                self.cr3 = cr3;
                self.enable(tsc, ip);
            }
            Kind::Disable { ip } => self.disable(tsc, ip),
            _ if !self.on => {}
            Kind::Cr3 { value } => {
                self.stream.tick(tsc);
                if self.telling {
                    self.stream.stamped(tsc, Packet::Pip { cr3: value });
                }
            }
            Kind::Halt { .. } => {
                self.stream.tick(tsc);
                self.stream.flush(tsc);
                if self.options.pwr_evt {
                    self.stream.stamped(tsc, Packet::Pwre { c_state: 1 });
                    self.stream.stamped(tsc, Packet::Exstop);
                }
            }
            // As in a guest's stream when its host takes the CPU. Otherwise, branches from before and after it would
            // share a packet, and therefore a time.
            Kind::Pause => {
                self.stream.tick(tsc);
                self.stream.flush(tsc);
            }
            Kind::Resume => self.stream.wake(tsc),
            Kind::Wake => {
                self.stream.wake(tsc);
                if self.options.pwr_evt {
                    self.stream.stamped(tsc, Packet::Pwrx { c_state: 1 });
                }
            }
            Kind::Tsc { .. } | Kind::Mark { .. } | Kind::Watch { .. } => {}
            _ => self.branch(event),
        }
    }

    fn branch(&mut self, event: &Event) {
        let Some((from, to)) = event.kind.ends() else { return };
        let tsc = event.tsc;
        self.stream.tick(tsc);
        self.straight_to(tsc, from);
        self.ip = to;
        if !self.telling {
            if self.options.traces(to) {
                self.begin(tsc, to);
            }
        } else if self.options.traces(to) {
            self.packets_of(event);
        } else {
            self.leave(event);
        }
        self.tracestop(tsc);
        if self.on && self.stream.is_psb_due() {
            self.psb(tsc);
        }
        if self.stream.position() - self.chunk_start >= self.options.chunk {
            self.stream.flush(tsc);
            self.cut(tsc, 0);
        }
    }

    /// Straight-line execution can leave a filtered range, or enter one.
    fn straight_to(&mut self, tsc: u64, from: u64) {
        if self.options.filter.is_empty() || self.options.traces(from) == self.telling {
            return;
        }
        if self.telling {
            let end = self.options.filter.iter().filter(|r| r.contains(&self.ip)).map(|r| r.end).max();
            self.end(tsc, end);
        } else {
            let starts = self.options.filter.iter().filter(|r| r.contains(&from)).map(|r| r.start);
            let start = starts.min().unwrap_or(from).max(self.ip);
            self.begin(tsc, start);
        }
    }

    fn begin(&mut self, tsc: u64, ip: u64) {
        self.telling = true;
        self.stream.stamped(tsc, Packet::TipPge(ip));
    }

    fn end(&mut self, tsc: u64, ip: Option<u64>) {
        self.telling = false;
        self.returns.clear();
        self.stream.stamped(tsc, Packet::TipPgd(ip));
    }

    /// A branch to code that is filtered out.
    fn leave(&mut self, event: &Event) {
        let Some((from, to)) = event.kind.ends() else { return };
        if let Kind::Async { .. } = event.kind {
            self.stream.stamped(event.tsc, Packet::Fup(from));
        }
        // If the privilege level of the target is not traced, the address is suppressed.
        self.end(event.tsc, self.options.traces_level(to).then_some(to));
    }

    fn packets_of(&mut self, event: &Event) {
        let tsc = event.tsc;
        match event.kind {
            Kind::Cond { taken, .. } => self.stream.bit(tsc, taken),
            Kind::Call { to, next, .. } => self.returns.push(next, to),
            Kind::IndirectCall { to, next, .. } => {
                self.returns.push(next, to);
                self.stream.stamped(tsc, Packet::Tip(to));
            }
            Kind::Ret { to, .. } => {
                if self.returns.pop() == Some(to) && !self.options.noretcomp {
                    self.stream.bit(tsc, true);
                } else {
                    self.stream.stamped(tsc, Packet::Tip(to));
                }
            }
            Kind::IndirectJump { to, .. } | Kind::Far { to, .. } => self.stream.stamped(tsc, Packet::Tip(to)),
            Kind::Async { from, to, .. } => {
                self.stream.stamped(tsc, Packet::Fup(from));
                self.stream.stamped(tsc, Packet::Tip(to));
            }
            _ => {} // the code shows a direct jump
        }
    }

    fn tracestop(&mut self, tsc: u64) {
        if self.telling && self.options.tracestop.iter().any(|range| range.contains(&self.ip)) {
            self.end(tsc, Some(self.ip));
            self.stream.stamped(tsc, Packet::TraceStop);
            self.on = false;
        }
    }

    fn psb(&mut self, tsc: u64) {
        self.returns.clear();
        self.stream.psb_plus(tsc, self.cr3, self.telling.then_some(self.ip));
    }

    fn enable(&mut self, tsc: u64, ip: u64) {
        self.on = true;
        self.telling = false;
        self.ip = ip;
        self.psb(tsc);
        if self.options.traces(ip) {
            self.begin(tsc, ip);
        }
    }

    fn disable(&mut self, tsc: u64, ip: u64) {
        if self.on && self.telling {
            self.stream.stamped(tsc, Packet::Fup(ip));
            self.end(tsc, None);
        }
        self.on = false;
    }

    /// End a chunk here.
    fn cut(&mut self, tsc: u64, flags: u64) {
        let size = self.stream.position() - self.chunk_start;
        if size > 0 {
            self.chunks.push(Chunk { offset: self.chunk_start, size, tsc, flags });
            self.chunk_start = self.stream.position();
        }
    }

    fn finish(mut self, tsc: u64) -> Encoded {
        self.stream.flush(tsc);
        self.cut(tsc, 0);
        let mut encoded = Encoded {
            bytes: self.stream.buffer.bytes,
            chunks: self.chunks,
            injected: self.injected,
            packets: self.stream.counts,
            syncs: self.stream.syncs,
        };
        if let Some(size) = self.options.snapshot {
            keep_last(&mut encoded, size, self.cpu, tsc);
        }
        encoded
    }
}

/// Overwrite mode: keeps what a ring buffer of `size` bytes holds at the end.
fn keep_last(encoded: &mut Encoded, size: usize, cpu: usize, tsc: u64) {
    let cut = encoded.bytes.len().saturating_sub(size);
    encoded.bytes.drain(..cut);
    let flags = AUX_FLAG_OVERWRITE;
    encoded.chunks = vec![Chunk { offset: 0, size: encoded.bytes.len(), tsc, flags }];
    encoded.syncs.retain(|sync| sync.offset >= cut);
    encoded.syncs.iter_mut().for_each(|sync| sync.offset -= cut);
    if cut > 0 {
        let first = encoded.syncs.first().map_or(tsc, |sync| sync.tsc);
        encoded.injected.retain(|injected| injected.tsc_end > first);
        let lost = Injected { kind: "overwritten", cpu, tsc_start: 0, tsc_end: first };
        encoded.injected.insert(0, lost);
    }
}
