// SPDX-License-Identifier: GPL-2.0-only
//! The state of each CPU while a log is read.

use pt_events::{Event, Kind};
use pt_insn::Class;
use pt_log::{Header, Record};

use crate::block::{Block, Execution, Ran};
use crate::report::Unexpected;
use crate::time::{Clock, Place};
use crate::transition::{self, Frame};
use crate::{Code, Report, Walk};

struct Definition {
    block: Option<Block>,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Cpu {
    events: Vec<Event>,
    /// First event of each interval: (index in `events`, interval).
    intervals: Vec<(usize, u32)>,
    cr3: u64,
    /// `Start` was read: the next block begins the observation.
    starts: bool,
    last: Option<Execution>,
    // Set by the records that precede a block.
    alias: Option<u64>,
    frame: Option<Frame>,
    watch: Option<Kind>,
}

impl Cpu {
    /// `event.tsc` is an instruction count until `date` is called.
    fn push(&mut self, place: Place, kind: Kind) {
        if self.intervals.last().map(|s| s.1) != Some(place.interval) {
            self.intervals.push((self.events.len(), place.interval));
        }
        self.events.push(Event { tsc: place.count, kind });
    }

    /// Converts counts to times.
    fn date(&mut self, clock: &Clock, report: &mut Report) {
        let mut times = clock.times();
        let mut intervals = self.intervals.iter().peekable();
        let mut interval = 0;
        let mut latest = 0;
        for (index, event) in self.events.iter_mut().enumerate() {
            if let Some(&(_, new)) = intervals.next_if(|s| s.0 == index) {
                interval = new;
            }
            let tsc = times.tsc(Place { interval, count: event.tsc }).unwrap_or(event.tsc);
            report.held_back += u64::from(tsc < latest);
            latest = latest.max(tsc);
            event.tsc = latest;
        }
        report.uncertain_intervals += times.n_uncertain;
    }
}

pub struct Walker {
    tsc_khz: u64,
    definitions: Vec<Option<Definition>>,
    cpus: Vec<Cpu>,
    cpu: usize,
    clock: Clock,
    code: Code,
    report: Report,
}

/// A log numbers its blocks from 0 on; a number above this means damage, not code.
const MAX_BLOCKS: u32 = 1 << 24;
const MAX_CPUS: u32 = 1024;

impl Walker {
    pub fn new(header: Header) -> Self {
        let n_cpus = header.n_cpus.clamp(1, MAX_CPUS) as usize;
        Self {
            tsc_khz: header.tsc_khz,
            definitions: Vec::new(),
            cpus: (0..n_cpus).map(|_| Cpu::default()).collect(),
            cpu: 0,
            clock: Clock::default(),
            code: Code::default(),
            report: Report::default(),
        }
    }

    fn push(&mut self, kind: Kind) {
        let here = self.clock.here();
        self.cpus[self.cpu].push(here, kind);
    }

    pub fn record(&mut self, record: Record) {
        let cpu = &mut self.cpus[self.cpu];
        match record {
            Record::Block { id } => self.block(id),
            Record::Define { id, ip, n_insns, bytes } => self.define(id, ip, n_insns, bytes),
            Record::Alias { ip } => cpu.alias = Some(ip),
            Record::Partial { n_started } => self.partial(n_started),
            Record::Entry { vector, stack, .. } => cpu.frame = Some(Frame { vector, stack }),
            Record::Cr3 { value } if value != cpu.cr3 => {
                cpu.cr3 = value;
                self.push(Kind::Cr3 { value });
            }
            Record::Cr3 { .. } => {}
            Record::Tsc { value } => {
                self.clock.reading(value);
                self.push(Kind::Tsc { value });
            }
            Record::Cpu { index } => {
                if (index as usize) < self.cpus.len() {
                    self.turn(index as usize);
                } else {
                    self.unexpected(0, "a CPU that the log's header does not have");
                }
            }
            Record::Halt => {
                let ip = self.ran().map_or(0, |ran| ran.next_ip());
                self.push(Kind::Halt { ip });
            }
            Record::Wake => {
                self.clock.wake();
                self.push(Kind::Wake);
            }
            Record::Mark { id, at, rdi, rsi } => self.mark(at, Kind::Mark { id, rdi, rsi }),
            Record::Watch { ip, rdi, rsi, rdx } => cpu.watch = Some(Kind::Watch { ip, rdi, rsi, rdx }),
            Record::Start { cr3 } => {
                cpu.cr3 = cr3;
                cpu.starts = true;
            }
            Record::Stop => self.stop(),
        }
    }

    fn define(&mut self, id: u32, ip: u64, n_insns: u32, bytes: Vec<u8>) {
        if id >= MAX_BLOCKS {
            return; // its executions will be undefined
        }
        let block = Block::decode(ip, n_insns, &bytes);
        self.report.undecodable += u64::from(block.is_none());
        if self.definitions.len() <= id as usize {
            self.definitions.resize_with(id as usize + 1, || None);
        }
        self.definitions[id as usize] = Some(Definition { block, bytes });
    }

    /// The current CPU's last execution.
    fn ran(&self) -> Option<Ran<'_>> {
        let last = self.cpus[self.cpu].last?;
        let block = self.definitions.get(last.block as usize)?.as_ref()?.block.as_ref()?;
        Some(Ran { block, ip: last.ip, n_started: last.n_started })
    }

    fn unexpected(&mut self, to: u64, what: &str) {
        let from = self.ran().map_or(0, |ran| ran.last_ip());
        let (cpu, instructions) = (self.cpu, self.clock.count);
        self.report.unexpected(|| Unexpected {
            cpu,
            instructions,
            from: format!("{from:#x}"),
            to: format!("{to:#x}"),
            what: what.to_owned(),
        });
    }

    fn block(&mut self, id: u32) {
        self.report.blocks += 1;
        let Some(definition) = self.definitions.get(id as usize).and_then(Option::as_ref) else {
            self.report.undefined += 1;
            return;
        };
        let Some(block) = &definition.block else {
            self.report.undefined += 1;
            return;
        };
        let n_insns = block.n_insns();
        let cpu = &mut self.cpus[self.cpu];
        let ip = cpu.alias.take().unwrap_or(block.ip);
        self.code.add(id, ip, cpu.cr3, &definition.bytes, self.clock.here());
        let frame = cpu.frame.take();
        let watch = cpu.watch.take();
        if std::mem::take(&mut cpu.starts) {
            let cr3 = cpu.cr3;
            self.push(Kind::Enable { ip, cr3 });
        } else {
            self.transition(ip, frame);
        }
        if let Some(watch) = watch {
            self.push(watch);
        }
        // Count all instructions at the begin, as the emulator does; those that do not execute are subtracted later.
        self.clock.count += u64::from(n_insns);
        self.cpus[self.cpu].last = Some(Execution { block: id, ip, n_started: n_insns });
    }

    fn transition(&mut self, to: u64, frame: Option<Frame>) {
        let Some(ran) = self.ran() else {
            return self.unexpected(to, "a block without one before it");
        };
        let step = match &frame {
            None => transition::step(&ran, to),
            Some(frame) => transition::step_into_handler(&ran, frame, to),
        };
        let started = ran.n_started > 0;
        let complete = ran.is_complete();
        self.report.transitions += 1;
        let Ok(step) = step else {
            let what = match frame {
                None => "the code does not lead there".to_owned(),
                Some(f) => format!("interrupt or exception {} with saved address {:#x}", f.vector, f.rip()),
            };
            return self.unexpected(to, &what);
        };
        // A `rep` iteration costs its tick; an instruction that faulted or runs again costs none.
        if !step.retired && started && (step.entry.is_some() || !complete) {
            self.clock.count -= 1;
        }
        for kind in [step.branch, step.entry].into_iter().flatten() {
            self.push(kind);
        }
    }

    fn partial(&mut self, n_started: u32) {
        let Some(ran) = self.ran() else { return };
        let n_insns = ran.block.n_insns();
        if n_started >= n_insns {
            return self.unexpected(0, "more instructions started than the block has");
        }
        self.clock.count -= u64::from(n_insns - n_started);
        if let Some(last) = &mut self.cpus[self.cpu].last {
            last.n_started = n_started;
        }
    }

    /// CPUs run one at a time. For the CPU that pauses, the target of its last block is not known yet.
    fn turn(&mut self, index: usize) {
        if index == self.cpu {
            return;
        }
        let old = self.cpus[self.cpu].events.last().map(|e| e.kind);
        if old.is_some_and(|kind| !matches!(kind, Kind::Halt { .. } | Kind::Disable { .. })) {
            self.push(Kind::Pause);
        }
        self.cpu = index;
        if self.cpus[index].events.last().is_some_and(|e| e.kind == Kind::Pause) {
            self.push(Kind::Resume);
        }
    }

    /// A mark is in the middle of its block, whose instructions are already counted.
    fn mark(&mut self, at: u32, kind: Kind) {
        let n_insns = self.ran().map_or(0, |ran| ran.block.n_insns());
        let mut place = self.clock.here();
        place.count = (place.count + u64::from(at) + 1).saturating_sub(n_insns.into());
        self.cpus[self.cpu].push(place, kind);
    }

    /// The last block of each CPU is known, but not where it led.
    fn stop(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.cpu = cpu;
            let Some(ran) = self.ran() else { continue };
            let branches = ran.is_complete()
                && !matches!(
                    ran.class(),
                    Class::Other | Class::Mark { .. } | Class::Rdtsc | Class::MovToCr3 | Class::Hlt
                );
            let ip = if branches { ran.last_ip() } else { ran.next_ip() };
            self.push(Kind::Disable { ip });
            self.cpus[cpu].last = None;
        }
    }

    pub fn finish(mut self, was_cut: bool) -> Walk {
        self.stop(); // does nothing after the log's own Stop
        let mut report = self.report;
        for cpu in &mut self.cpus {
            cpu.date(&self.clock, &mut report);
            for event in &cpu.events {
                *report.events.entry(event.kind.name()).or_default() += 1;
            }
        }
        self.code.date(&self.clock);
        report.instructions = self.clock.count;
        report.tsc_readings = self.clock.n_readings();
        report.tsc_max_disagreement = self.clock.max_disagreement;
        report.tsc_disagreements = self.clock.n_disagreements;
        report.code_changed = self.code.n_changed;
        report.was_cut = was_cut;
        let cpus = self.cpus.into_iter().map(|cpu| cpu.events).collect();
        Walk { tsc_khz: self.tsc_khz, cpus, report, code: self.code }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_did_not_halt_pauses_while_the_other_runs() {
        let mut walker = Walker::new(Header { n_cpus: 2, tsc_khz: 1_000_000, begun_ms: 0 });
        let jump_to_itself = vec![0xeb, 0xfe];
        walker.record(Record::Define { id: 0, ip: 0x1000, n_insns: 1, bytes: jump_to_itself });
        for index in [0, 1] {
            walker.record(Record::Cpu { index });
            walker.record(Record::Start { cr3: 0x5000 });
            walker.record(Record::Block { id: 0 });
        }
        walker.record(Record::Halt);
        walker.record(Record::Cpu { index: 0 });
        walker.record(Record::Block { id: 0 });
        let walk = walker.finish(false);
        let names: Vec<Vec<_>> =
            walk.cpus.iter().map(|events| events.iter().map(|e| e.kind.name()).collect()).collect();
        assert_eq!(names[0], ["enable", "pause", "resume", "jump", "disable"]);
        assert_eq!(names[1][..2], ["enable", "halt"]); // its time passes in the halt
        assert!(!names[1].contains(&"pause"));
    }
}
