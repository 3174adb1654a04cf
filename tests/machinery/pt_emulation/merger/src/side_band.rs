// SPDX-License-Identifier: GPL-2.0-only
//! Records of the recording: their times, and the parts that are changed.

use anyhow::{Context, Result};

use crate::file::File;
use crate::layout::{record, sample, u32_at, u64_at, RECORD_HEADER};

/// TSC to perf's clock: the recording's TIME_CONV record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeConv {
    pub shift: u64,
    pub mult: u64,
    pub zero: u64,
}

impl TimeConv {
    pub fn find(file: &File) -> Result<Self> {
        for record in file.records() {
            let (_, bytes) = record?;
            if u32_at(bytes, 0) == record::TIME_CONV {
                let [shift, mult, zero] = [8, 16, 24].map(|at| u64_at(bytes, at));
                return Ok(Self { shift: shift & 63, mult, zero });
            }
        }
        None.context("its clock is not the TSC (no TIME_CONV record): boot with tsc=reliable clocksource=tsc")
    }

    /// Of a file that has AUX data: TIME_CONV comes before the data.
    pub fn find_in_merged(bytes: &[u8]) -> Result<Self> {
        Self::find(&File::parse(bytes)?)
    }

    pub fn ns(&self, tsc: u64) -> u64 {
        let (high, low) = (tsc >> self.shift, tsc & ((1 << self.shift) - 1));
        let ns = high.wrapping_mul(self.mult).wrapping_add(low.wrapping_mul(self.mult) >> self.shift);
        self.zero.wrapping_add(ns)
    }
}

/// The fields at the end of each record of a sample type.
#[derive(Clone, Copy)]
pub struct SampleId {
    sample_type: u64,
}

impl SampleId {
    pub fn new(sample_type: u64) -> Self {
        Self { sample_type }
    }

    fn has(&self, bit: u64) -> bool {
        self.sample_type & bit != 0
    }

    pub fn size(&self) -> usize {
        use sample::*;
        [TID, TIME, ID, STREAM_ID, CPU, IDENTIFIER].iter().filter(|&&bit| self.has(bit)).count() * 8
    }

    /// Time of a record, ns of perf's clock. None: it has none.
    pub fn time(&self, bytes: &[u8]) -> Option<u64> {
        let kind = u32_at(bytes, 0);
        if kind >= record::USER || !self.has(sample::TIME) {
            return None;
        }
        let at = if kind == record::SAMPLE {
            let before = [sample::IDENTIFIER, sample::IP, sample::TID];
            RECORD_HEADER + before.iter().filter(|&&bit| self.has(bit)).count() * 8
        } else {
            let end = bytes.len().checked_sub(self.size())?;
            end + usize::from(self.has(sample::TID)) * 8
        };
        Some(u64_at(bytes, at)).filter(|&time| time != 0)
    }

    /// The fields of a record that the kernel wrote on `cpu` while `tid` ran.
    pub fn bytes(&self, pid: u32, tid: u32, time: u64, cpu: u32, id: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |bit, value: u64| {
            if self.has(bit) {
                bytes.extend(value.to_le_bytes());
            }
        };
        put(sample::TID, u64::from(pid) | u64::from(tid) << 32);
        put(sample::TIME, time);
        put(sample::ID, id);
        put(sample::STREAM_ID, id);
        put(sample::CPU, cpu.into());
        put(sample::IDENTIFIER, id);
        bytes
    }
}

/// An MMAP or MMAP2 record of the guest's vDSO, with the name replaced by that of a file. None: it is not such a
/// record.
pub fn rename_vdso(bytes: &[u8], id: SampleId, name: &str) -> Option<Vec<u8>> {
    let name_at = match u32_at(bytes, 0) {
        record::MMAP => RECORD_HEADER + 32,
        record::MMAP2 => RECORD_HEADER + 64,
        _ => return None,
    };
    let end = bytes.len().checked_sub(id.size())?;
    let old = bytes.get(name_at..end)?;
    if !old.starts_with(b"[vdso]\0") {
        return None;
    }
    let mut out = bytes[..name_at].to_vec();
    out.extend(name.as_bytes());
    out.resize(name_at + (name.len() + 1).next_multiple_of(8), 0);
    out.extend(&bytes[end..]);
    let size = (out.len() as u16).to_le_bytes();
    out[6..8].copy_from_slice(&size);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_converted_as_perf_does() {
        // 2 ticks of TSC are 1 ns: mult / 2^shift = 1/2; the low part is rounded down separately
        let conv = TimeConv { shift: 4, mult: 8, zero: 1000 };
        assert_eq!(conv.ns(0), 1000);
        assert_eq!(conv.ns(33), 1000 + 16);
        let back = TimeConv { zero: 1000u64.wrapping_neg(), ..conv };
        assert_eq!(back.ns(4000), 1000);
    }

    #[test]
    fn the_vdsos_record_keeps_its_end() {
        let id = SampleId::new(sample::TID | sample::TIME | sample::IDENTIFIER);
        let mut body = vec![7; 64];
        body.extend(b"[vdso]\0\0");
        body.extend(id.bytes(1, 2, 345, 0, 9));
        let bytes = crate::layout::record(record::MMAP2, &body);
        let renamed = rename_vdso(&bytes, id, "/x/vdso.so").unwrap();
        assert_eq!(&renamed[72..88], b"/x/vdso.so\0\0\0\0\0\0");
        assert_eq!(id.time(&renamed), Some(345));
        assert_eq!(usize::from(u16::from_le_bytes([renamed[6], renamed[7]])), renamed.len());
        let other = crate::layout::record(record::COMM, &body);
        assert!(rename_vdso(&other, id, "/x/vdso.so").is_none());
    }
}
