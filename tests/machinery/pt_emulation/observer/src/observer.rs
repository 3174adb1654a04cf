// SPDX-License-Identifier: GPL-2.0-only
//! Writes what was executed as records of the log.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter};
use std::ptr;
use std::time::{SystemTime, UNIX_EPOCH};

use pt_log::{Header, Record, Writer};

use crate::ffi;
use crate::guest::{self, Registers};
use crate::translate::{Block, Leaves};

/// `started` of every CPU must fit the scoreboard of one-byte elements (16, of which 8 are used).
pub const MAX_CPUS: usize = 8;

/// With `-icount shift=0` an instruction takes a nanosecond, and the TSC counts nanoseconds.
const TSC_KHZ: u64 = 1_000_000;

const START: u16 = 0;
const STOP: u16 = 1;
const WATCH: u16 = 2;
const UNWATCH: u16 = 3;

struct Log {
    path: String,
    out: Writer<BufWriter<File>>,
    /// Number of blocks that have a number in the log.
    n_blocks: u32,
}

impl Log {
    fn create(path: String, n_cpus: usize) -> Self {
        let made = File::create(&path).and_then(|file| {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let begun_ms = since_1970.as_millis() as u64;
            let header = Header { n_cpus: n_cpus as u32, tsc_khz: TSC_KHZ, begun_ms };
            Writer::new(BufWriter::with_capacity(1 << 20, file), header)
        });
        match made {
            Ok(out) => Self { path, out, n_blocks: 0 },
            Err(error) => crate::die(&format!("{path}: {error}"), "give a prefix that can be written"),
        }
    }

    #[cold]
    fn failed(&self, error: &io::Error) -> ! {
        crate::die(&format!("{}: {error}", self.path), "is the disk full? the log is not complete")
    }

    fn record(&mut self, record: &Record) {
        if let Err(error) = self.out.record(record) {
            self.failed(&error);
        }
    }

    #[inline]
    fn block(&mut self, id: u32) {
        if let Err(error) = self.out.block(id) {
            self.failed(&error);
        }
    }
}

#[derive(Clone, Copy)]
struct Cpu {
    /// Whether the log has the `Start` of this CPU.
    started: bool,
    /// What has to be read after its last block.
    leaves: Leaves,
}

const FRESH: Cpu = Cpu { started: false, leaves: Leaves::Nothing };

#[derive(PartialEq)]
enum State {
    /// Only marks are instrumented.
    Light,
    /// Instrumentation of everything was requested.
    Starting,
    Full,
    /// The STOP mark was executed: its block is the last.
    Stopping,
}

pub struct Observer {
    prefix: String,
    id: ffi::Id,
    state: State,
    log: Option<Log>,
    /// Number of logs so far; shows whether a block's number belongs to the current log.
    n_logs: u32,
    cpus: [Cpu; MAX_CPUS],
    n_cpus: usize,
    /// CPU and block that ran last; null: the end of the block is already in the log.
    last_cpu: usize,
    last: *const Block,
    current: Option<ffi::CurrentCpu>,
    registers: Option<Registers>,
    handlers: HashMap<u64, u8>,
    watched: HashSet<u64>,
    started: ffi::U64,
    started_bytes: *mut u128,
}

/// The value that an instruction stores when it is the `n`th of its block to start. It is odd, so that it can be found
/// wherever it was stored (see `Observer::take_started`).
pub fn started_value(n: u32) -> u64 {
    u64::from(n) << 1 | 1
}

/// The `n` of the value somewhere in these bytes; all other bytes are 0.
fn started_of(bytes: u128) -> u32 {
    if bytes == 0 {
        return 0;
    }
    (bytes >> (bytes.trailing_zeros() & !7) >> 1) as u32
}

impl Observer {
    pub fn new(prefix: String, n_cpus: usize, id: ffi::Id) -> Self {
        // QEMU 10.0 scales the CPU's index by the element's size in place, in a constant that it shares. With several
        // CPUs, any other size than 1 therefore ends in wild stores. A block stores at the index of the CPU that
        // translated it, whichever CPU executes it.
        let score = unsafe { ffi::qemu_plugin_scoreboard_new(1) };
        Self {
            prefix,
            id,
            state: State::Light,
            log: None,
            n_logs: 0,
            cpus: [FRESH; MAX_CPUS],
            n_cpus,
            last_cpu: 0,
            last: ptr::null(),
            current: None,
            registers: None,
            handlers: HashMap::new(),
            watched: HashSet::new(),
            started: ffi::U64 { score, offset: 0 },
            started_bytes: ptr::null_mut(),
        }
    }

    pub fn id(&self) -> ffi::Id {
        self.id
    }

    pub fn is_full(&self) -> bool {
        self.state == State::Full
    }

    pub fn vector_of(&self, ip: u64) -> Option<u8> {
        self.handlers.get(&ip).copied()
    }

    pub fn is_watched(&self, ip: u64) -> bool {
        self.watched.contains(&ip)
    }

    pub fn started_place(&self) -> ffi::U64 {
        self.started
    }

    /// How many instructions of the last block started; 0 if this was already called for it.
    #[inline]
    fn take_started(&mut self) -> u32 {
        // SAFETY: the scoreboard has 16 elements of one byte from the beginning.
        unsafe {
            let value = self.started_bytes.read_unaligned();
            self.started_bytes.write_unaligned(0);
            started_of(value)
        }
    }

    fn registers(&mut self) -> &Registers {
        self.registers.get_or_insert_with(|| match Registers::find() {
            Ok(registers) => registers,
            Err(name) => {
                crate::die(&format!("this QEMU does not let plugins read {name}"), "use QEMU 10.0 or newer")
            }
        })
    }

    pub fn mark(&mut self, id: u16, at: u32) {
        let registers = self.registers();
        let (rdi, rsi) = (registers.read(registers.rdi), registers.read(registers.rsi));
        match (id, &self.state) {
            (START, State::Light) => self.start(rdi),
            (WATCH, State::Light) => drop(self.watched.insert(rdi)),
            (UNWATCH, State::Light) => self.watched.clear(),
            (STOP, State::Full) => {
                self.write(&Record::Mark { id, at, rdi, rsi });
                self.state = State::Stopping;
            }
            (_, State::Full) => self.write(&Record::Mark { id, at, rdi, rsi }),
            _ => {}
        }
    }

    fn write(&mut self, record: &Record) {
        if let Some(log) = &mut self.log {
            log.record(record);
        }
    }

    fn start(&mut self, number: u64) {
        let Some(handlers) = guest::handlers(self.registers()) else {
            crate::die("the guest's IDT is not where Linux has it", "observe Linux on x86-64");
        };
        let vectors = (0..=u8::MAX).zip(handlers).filter(|&(_, ip)| ip != 0);
        self.handlers = vectors.map(|(vector, ip)| (ip, vector)).collect();
        self.current = ffi::CurrentCpu::new(self.n_cpus);
        if self.current.is_none() {
            crate::die("this QEMU does not tell which CPU executes", "use Debian's QEMU 10.0");
        }
        self.log = Some(Log::create(format!("{}{number}.log", self.prefix), self.n_cpus));
        // SAFETY: there are CPUs now: one of them executed the mark.
        self.started_bytes = unsafe { ffi::qemu_plugin_scoreboard_find(self.started.score, 0) }.cast();
        self.n_logs += 1;
        self.cpus = [FRESH; MAX_CPUS];
        self.last = ptr::null();
        self.state = State::Starting;
        crate::retranslate();
    }

    /// No earlier translations are left.
    pub fn instrumentation_changed(&mut self) {
        if self.state == State::Starting {
            self.state = State::Full;
            self.take_started();
        }
    }

    /// A block begins to execute.
    #[inline]
    pub fn block(&mut self, block: &mut Block) {
        if self.log.is_none() {
            return; // translated before the log was closed
        }
        self.end_last();
        if self.state == State::Stopping {
            return self.stop();
        }
        let cpu = self.current.as_ref().map_or(0, ffi::CurrentCpu::index);
        if cpu != self.last_cpu || !self.cpus[cpu].started {
            self.change_cpu(cpu);
        }
        if self.cpus[cpu].leaves != Leaves::Nothing {
            self.after(cpu);
        }
        if block.vector.is_some() {
            self.entry(block);
        }
        if block.user || block.watched {
            self.user_or_watched(block);
        }
        if block.log != self.n_logs {
            self.define(block);
        }
        self.last = block;
        if let Some(log) = &mut self.log {
            log.block(block.id);
        }
    }

    /// Another block begins: now, it is known what the last block's instructions did.
    #[inline]
    fn end_last(&mut self) {
        let started = self.take_started();
        if self.last.is_null() {
            return;
        }
        // SAFETY: blocks live as long as QEMU.
        let last = unsafe { &*self.last };
        self.last = ptr::null();
        if started != last.n_insns {
            self.write(&Record::Partial { n_started: started });
        } else if last.leaves != Leaves::Nothing {
            self.cpus[self.last_cpu].leaves = last.leaves;
            if last.leaves == Leaves::Halt {
                self.write(&Record::Halt);
            }
        }
    }

    #[cold]
    fn change_cpu(&mut self, index: usize) {
        self.last_cpu = index;
        self.write(&Record::Cpu { index: index as u32 });
        if !self.cpus[index].started {
            self.cpus[index].started = true;
            let registers = self.registers();
            let cr3 = registers.read(registers.cr3);
            self.write(&Record::Start { cr3 });
        }
    }

    /// Writes what the CPU's last instruction left, before anything else runs on it.
    fn after(&mut self, cpu: usize) {
        let leaves = std::mem::replace(&mut self.cpus[cpu].leaves, Leaves::Nothing);
        let r = self.registers();
        let record = match leaves {
            Leaves::Cr3 => Record::Cr3 { value: r.read(r.cr3) },
            Leaves::Tsc => Record::Tsc { value: r.read(r.rdx) << 32 | r.read(r.rax) & 0xffff_ffff },
            Leaves::Halt => Record::Wake,
            Leaves::Nothing => return,
        };
        self.write(&record);
    }

    #[cold]
    fn entry(&mut self, block: &Block) {
        let registers = self.registers();
        let rsp = registers.read(registers.rsp);
        let stack = registers.memory(rsp).unwrap_or_default();
        self.write(&Record::Entry { vector: block.vector.unwrap_or(0), rsp, stack });
    }

    fn user_or_watched(&mut self, block: &Block) {
        let r = self.registers();
        let ip = if block.user { r.read(r.rip) } else { block.ip };
        if block.watched {
            let (rdi, rsi, rdx) = (r.read(r.rdi), r.read(r.rsi), r.read(r.rdx));
            self.write(&Record::Watch { ip, rdi, rsi, rdx });
        }
        if ip != block.ip {
            self.write(&Record::Alias { ip });
        }
    }

    #[cold]
    fn define(&mut self, block: &mut Block) {
        let Some(log) = &mut self.log else { return };
        block.log = self.n_logs;
        block.id = log.n_blocks;
        log.n_blocks += 1;
        let bytes = block.bytes.clone();
        log.record(&Record::Define { id: block.id, ip: block.ip, n_insns: block.n_insns, bytes });
    }

    fn stop(&mut self) {
        self.write(&Record::Stop);
        self.close();
        self.state = State::Light;
        crate::retranslate();
    }

    fn close(&mut self) {
        if let Some(mut log) = self.log.take() {
            if let Err(error) = log.out.flush() {
                log.failed(&error);
            }
        }
    }

    /// QEMU ends. A log that is still open has no `Stop`.
    pub fn finish(&mut self) {
        self.end_last();
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_wherever_a_cpus_index_put_it() {
        for cpu in 0..MAX_CPUS {
            for n in [1, 2, 127, 128, 512] {
                assert_eq!(started_of(u128::from(started_value(n)) << (8 * cpu)), n);
            }
        }
        assert_eq!(started_of(0), 0);
    }
}
