// SPDX-License-Identifier: GPL-2.0-only
//! Writes a log.

use std::io::{self, Write};

use crate::{tag, Header, Record, MAGIC, TAG, VERSION};

/// Writes records; give it a buffered stream.
pub struct Writer<W: Write> {
    out: W,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W, header: Header) -> io::Result<Self> {
        let mut writer = Self { out };
        let [khz, begun] = [header.tsc_khz, header.begun_ms].map(halves);
        let version = [MAGIC[0], MAGIC[1], VERSION, header.n_cpus];
        writer.words(&[&version[..], &khz, &begun].concat())?;
        Ok(writer)
    }

    fn words(&mut self, words: &[u32]) -> io::Result<()> {
        for word in words {
            self.out.write_all(&word.to_le_bytes())?;
        }
        Ok(())
    }

    /// `Record::Block`, without constructing one: this record occurs millions of times.
    #[inline]
    pub fn block(&mut self, id: u32) -> io::Result<()> {
        debug_assert!(id < TAG);
        self.out.write_all(&id.to_le_bytes())
    }

    fn tagged(&mut self, tag: u32, words: &[u32], values: &[u64]) -> io::Result<()> {
        self.words(&[tag])?;
        self.words(words)?;
        for &value in values {
            self.words(&halves(value))?;
        }
        Ok(())
    }

    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        match *record {
            Record::Block { id } => self.block(id),
            Record::Define { id, ip, n_insns, ref bytes } => {
                let [low, high] = halves(ip);
                self.tagged(tag::DEFINE, &[id, low, high, n_insns, bytes.len() as u32], &[])?;
                self.out.write_all(bytes)?;
                self.out.write_all(&[0; 3][..bytes.len().wrapping_neg() & 3])
            }
            Record::Alias { ip } => self.tagged(tag::ALIAS, &[], &[ip]),
            Record::Partial { n_started } => self.tagged(tag::PARTIAL, &[n_started], &[]),
            Record::Entry { vector, rsp, stack } => {
                self.tagged(tag::ENTRY, &[vector.into()], &[rsp])?;
                stack.iter().try_for_each(|&value| self.words(&halves(value)))
            }
            Record::Cr3 { value } => self.tagged(tag::CR3, &[], &[value]),
            Record::Tsc { value } => self.tagged(tag::TSC, &[], &[value]),
            Record::Cpu { index } => self.tagged(tag::CPU, &[index], &[]),
            Record::Halt => self.tagged(tag::HALT, &[], &[]),
            Record::Wake => self.tagged(tag::WAKE, &[], &[]),
            Record::Mark { id, at, rdi, rsi } => self.tagged(tag::MARK, &[id.into(), at], &[rdi, rsi]),
            Record::Watch { ip, rdi, rsi, rdx } => self.tagged(tag::WATCH, &[], &[ip, rdi, rsi, rdx]),
            Record::Start { cr3 } => self.tagged(tag::START, &[], &[cr3]),
            Record::Stop => self.tagged(tag::STOP, &[], &[]),
        }
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}
