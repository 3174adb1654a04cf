// SPDX-License-Identifier: GPL-2.0-only
//! The observer's log: what the guest's CPUs executed. It does not depend on the form of a trace.
//!
//! A file is a header of `HEADER_WORDS` little-endian 32-bit words, then records. A word below `TAG` is a complete
//! record: the block with that number began to execute. Any other word is a tag, followed by the words of that record;
//! 64-bit values are two words, low half first.
//!
//! There is one log for all CPUs: the emulator runs them in turns, and the order in the log is the order of execution.
//! If a log was cut in the middle of a record, it is read up to there.

mod read;
mod write;

pub use read::{Error, Reader};
pub use write::Writer;

pub const MAGIC: [u32; 2] = [0x5450_534e, 0x474f_4c2d]; // "NSPT-LOG"
pub const VERSION: u32 = 1;
/// magic (2), version, number of CPUs, TSC frequency in kHz (2), time at which it was begun (2)
pub const HEADER_WORDS: usize = 8;

/// The first word that is a tag and not a block number.
pub const TAG: u32 = 0xffff_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub n_cpus: u32,
    pub tsc_khz: u64,
    /// The emulating machine's clock, ms since 1970: together with the file's time, it shows the speed.
    pub begun_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Block `id` began to execute; all of its instructions retired unless a `Partial` follows.
    Block { id: u32 },
    /// Code of a block, before its first execution. Blocks are straight-line: only their last
    /// instruction can branch. A number is defined once.
    Define { id: u32, ip: u64, n_insns: u32, bytes: Vec<u8> },
    /// The next block executes at this address, not at the one it was defined with (the same
    /// physical code mapped elsewhere).
    Alias { ip: u64 },
    /// Only `n_started` instructions of the CPU's last block began; the last of these may have
    /// faulted, or be executed again by the next block (device access).
    Partial { n_started: u32 },
    /// The next block is the handler of interrupt or exception `vector`. `stack` is what lies
    /// at rsp: [error code,] rip, cs, rflags, rsp, ss.
    Entry { vector: u8, rsp: u64, stack: [u64; 6] },
    /// The `mov cr3` at the end of the last block left this value.
    Cr3 { value: u64 },
    /// The rdtsc or rdtscp at the end of the last block gave this value.
    Tsc { value: u64 },
    /// The records from here on belong to this CPU, until the next `Cpu`.
    Cpu { index: u32 },
    /// The CPU halted. Time may jump before its next record.
    Halt,
    /// The CPU runs again.
    Wake,
    /// Instruction number `at` (from 0) of the last block was a mark.
    Mark { id: u16, at: u32, rdi: u64, rsi: u64 },
    /// The next block starts at a watched address.
    Watch { ip: u64, rdi: u64, rsi: u64, rdx: u64 },
    /// Observation of this CPU begins with the next block.
    Start { cr3: u64 },
    /// Observation of all CPUs ends.
    Stop,
}

/// Tags, and how many words follow. `Define` has `n_bytes` more, in whole words.
pub(crate) mod tag {
    pub const DEFINE: u32 = 0xffff_0001; // id, ip (2), n_insns, n_bytes
    pub const ALIAS: u32 = 0xffff_0002; // ip (2)
    pub const PARTIAL: u32 = 0xffff_0003; // n_started
    pub const ENTRY: u32 = 0xffff_0004; // vector, rsp (2), stack (12)
    pub const CR3: u32 = 0xffff_0005; // value (2)
    pub const TSC: u32 = 0xffff_0006; // value (2)
    pub const CPU: u32 = 0xffff_0007; // index
    pub const HALT: u32 = 0xffff_0008;
    pub const WAKE: u32 = 0xffff_0009;
    pub const MARK: u32 = 0xffff_000a; // id, at, rdi (2), rsi (2)
    pub const WATCH: u32 = 0xffff_000b; // ip (2), rdi (2), rsi (2), rdx (2)
    pub const START: u32 = 0xffff_000c; // cr3 (2)
    pub const STOP: u32 = 0xffff_000d;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_record() -> Vec<Record> {
        vec![
            Record::Cpu { index: 1 },
            Record::Start { cr3: 0x1_0000_1000 },
            Record::Define { id: 7, ip: 0xffff_ffff_8100_0000, n_insns: 2, bytes: vec![0x90, 0x90, 0xc3] },
            Record::Alias { ip: 0x7fff_0000_1000 },
            Record::Block { id: 7 },
            Record::Mark { id: 3, at: 1, rdi: 1 << 40, rsi: 9 },
            Record::Partial { n_started: 1 },
            Record::Entry { vector: 14, rsp: 0xffff_fe00_0000_0fd8, stack: [2, 3, 4, 5, 6, u64::MAX] },
            Record::Watch { ip: 5, rdi: 6, rsi: 7, rdx: 8 },
            Record::Cr3 { value: 0x2000 },
            Record::Tsc { value: 0x1234_5678_9abc },
            Record::Halt,
            Record::Wake,
            Record::Stop,
        ]
    }

    fn written(records: &[Record]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer =
            Writer::new(&mut out, Header { n_cpus: 2, tsc_khz: 1_000_000, begun_ms: 1 << 40 }).unwrap();
        for record in records {
            writer.record(record).unwrap();
        }
        writer.flush().unwrap();
        out
    }

    #[test]
    fn every_record_comes_back() {
        let bytes = written(&every_record());
        let mut reader = Reader::new(&bytes[..]).unwrap();
        assert_eq!(reader.header(), Header { n_cpus: 2, tsc_khz: 1_000_000, begun_ms: 1 << 40 });
        let back: Vec<Record> = reader.by_ref().collect::<Result<_, _>>().unwrap();
        assert_eq!(back, every_record());
        assert!(!reader.was_cut());
    }

    #[test]
    fn a_cut_log_is_read_up_to_the_cut() {
        let bytes = written(&every_record());
        let mut reader = Reader::new(&bytes[..bytes.len() - 18]).unwrap();
        let back: Vec<Record> = reader.by_ref().collect::<Result<_, _>>().unwrap();
        // 18 bytes: STOP, WAKE, HALT (4 each), and half of the TSC record
        assert_eq!(back, every_record()[..10]);
        assert!(reader.was_cut());
    }

    #[test]
    fn what_is_no_log_is_refused() {
        assert!(matches!(Reader::new(&b"PERFILE2"[..]), Err(Error::NotALog)));
        let mut bytes = written(&[]);
        bytes[8] = 9;
        assert!(matches!(Reader::new(&bytes[..]), Err(Error::Version(9))));
        let mut bytes = written(&[]);
        bytes.extend([0xff; 4]);
        let mut reader = Reader::new(&bytes[..]).unwrap();
        assert!(matches!(reader.next(), Some(Err(Error::Tag(0xffff_ffff)))));
    }
}
