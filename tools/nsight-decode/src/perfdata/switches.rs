// SPDX-License-Identifier: GPL-2.0-only
//! Records of context switches, by CPU and in order of time. A long recording has more of them than should be in memory: from
//! some number on, they are in a temporary file that has no name.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use super::layout::{u32_at, u64_at};
use crate::error::{Error, Result};

/// A context switch record, written on the way out or in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    pub time: u64,
    pub out: bool,
    /// The current thread when the record was written.
    pub pid: i32,
    pub tid: i32,
    /// The other thread, if the record names it.
    pub other: Option<(i32, i32)>,
}

/// Bytes of a record in the file.
const SIZE: usize = 32;
/// Records that are written and read at a time.
const BLOCK: usize = 1 << 11;
/// So many records are kept in memory, 16 MiB, before the file is made.
const MOST: usize = if cfg!(fuzzing) { 1 << 12 } else { 1 << 19 };
/// Records of each block that are in memory while blocks are merged.
const MERGED: usize = 64;

impl Switch {
    fn to_bytes(self) -> [u8; SIZE] {
        let (pid, tid) = self.other.unwrap_or_default();
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&self.time.to_le_bytes());
        for (at, word) in (8..).step_by(4).zip([self.pid, self.tid, pid, tid]) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[24] = u8::from(self.out) | u8::from(self.other.is_some()) << 1;
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at| u32_at(bytes, at) as i32;
        let other = (bytes[24] & 2 != 0).then(|| (word(16), word(20)));
        Self { time: u64_at(bytes, 0), out: bytes[24] & 1 != 0, pid: word(8), tid: word(12), other }
    }
}

/// The records of a CPU.
#[derive(Debug, Default)]
struct List {
    /// Blocks in the file: their places, and the times of their first records.
    blocks: Vec<(u32, u64)>,
    /// The records after them.
    rest: Vec<Switch>,
    last: u64,
    /// A record is earlier than the one before it: those of a CPU come from the buffers of several threads.
    unsorted: bool,
}

impl List {
    fn len(&self) -> usize {
        self.blocks.len() * BLOCK + self.rest.len()
    }
}

/// Blocks of records in a file.
#[derive(Debug)]
struct Blocks {
    file: File,
    n: u32,
}

impl Blocks {
    fn new() -> std::io::Result<Self> {
        let directory = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
        let flags = libc::O_TMPFILE | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(&directory);
        let named = |e| std::io::Error::other(format!("{}: no temporary file: {e}", directory.display()));
        Ok(Self { file: file.map_err(named)?, n: 0 })
    }

    fn write(&mut self, records: &[Switch]) -> std::io::Result<(u32, u64)> {
        let bytes: Vec<u8> = records.iter().flat_map(|s| s.to_bytes()).collect();
        self.file.write_all_at(&bytes, u64::from(self.n) * (BLOCK * SIZE) as u64)?;
        self.n += 1;
        Ok((self.n - 1, records[0].time))
    }
}

/// Reads records of a block into `to`, which gets no others.
fn read(file: &File, block: u32, from: usize, n: usize, to: &mut Vec<Switch>) -> std::io::Result<()> {
    let mut bytes = vec![0; n * SIZE];
    file.read_exact_at(&mut bytes, (u64::from(block) * BLOCK as u64 + from as u64) * SIZE as u64)?;
    to.clear();
    to.extend(bytes.chunks_exact(SIZE).map(Switch::from_bytes));
    Ok(())
}

/// All records of switches.
#[derive(Debug)]
pub struct Switches {
    /// By CPU; -1 if the records do not name it.
    lists: BTreeMap<i32, List>,
    /// The list that takes records now, and its CPU: a buffer has many of one CPU in a row.
    current: (i32, List),
    n: usize,
    /// How many are kept in memory.
    most: usize,
    blocks: Option<Blocks>,
    failed: Option<std::io::Error>,
}

impl Default for Switches {
    fn default() -> Self {
        Self::keeping(MOST)
    }
}

impl Switches {
    /// With so many records in memory.
    fn keeping(most: usize) -> Self {
        let current = (-1, List::default());
        Self { lists: BTreeMap::new(), current, n: 0, most, blocks: None, failed: None }
    }

    /// Takes a record. An error of the file is reported by `finish`.
    pub fn push(&mut self, cpu: i32, switch: Switch) {
        if self.current.0 != cpu {
            self.put_back();
            self.current = (cpu, self.lists.remove(&cpu).unwrap_or_default());
        }
        let list = &mut self.current.1;
        list.unsorted |= switch.time < list.last;
        list.last = switch.time;
        list.rest.push(switch);
        self.n += 1;
        if self.n == self.most {
            self.put_back();
            self.blocks = Blocks::new().map_err(|e| self.failed = Some(e)).ok();
            for list in self.lists.values_mut() {
                empty(list, &mut self.blocks, &mut self.failed);
            }
            self.current = (cpu, self.lists.remove(&cpu).unwrap_or_default());
        } else if self.n > self.most && list.rest.len() >= BLOCK {
            empty(list, &mut self.blocks, &mut self.failed);
        }
    }

    fn put_back(&mut self) {
        let (cpu, list) = std::mem::take(&mut self.current);
        if list.len() > 0 {
            self.lists.insert(cpu, list);
        }
    }

    /// Sorts by time.
    pub fn finish(&mut self) -> Result<()> {
        self.put_back();
        let sorted = match self.failed.take() {
            Some(e) => Err(e),
            None => self.sort(),
        };
        let hint = "set TMPDIR to a directory on a disk with room";
        sorted.map_err(|e| Error { hint, ..Error::memory(e) })
    }

    fn sort(&mut self) -> std::io::Result<()> {
        for list in self.lists.values_mut().filter(|list| list.unsorted) {
            list.rest.sort_by_key(|s| s.time);
            if let Some(blocks) = self.blocks.as_mut().filter(|_| !list.blocks.is_empty()) {
                merge(list, blocks)?;
            }
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.n
    }

    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    pub fn clear(&mut self) {
        *self = Self::keeping(self.most);
    }

    pub fn cpus(&self) -> impl Iterator<Item = i32> + '_ {
        self.lists.keys().copied()
    }

    pub fn has(&self, cpu: i32) -> bool {
        self.lists.contains_key(&cpu)
    }

    /// The records of a CPU. None: there are none.
    pub fn of(&self, cpu: i32) -> Option<Reader<'_>> {
        let list = self.lists.get(&cpu)?;
        Some(Reader {
            list,
            file: self.blocks.as_ref().map(|b| &b.file),
            block: usize::MAX,
            records: Vec::new(),
        })
    }
}

/// Writes the full blocks of a list. The records of a block that is written before others are earlier or, if the list is not
/// sorted, sorted in themselves.
fn empty(list: &mut List, blocks: &mut Option<Blocks>, failed: &mut Option<std::io::Error>) {
    let Some(blocks) = blocks else { return };
    let full = list.rest.len() / BLOCK * BLOCK;
    for records in list.rest[..full].chunks_exact_mut(BLOCK) {
        records.sort_by_key(|s| s.time);
        match blocks.write(records) {
            Ok(block) => list.blocks.push(block),
            Err(e) => *failed = Some(e),
        }
    }
    if failed.is_some() {
        list.rest.clear();
        return;
    }
    list.rest = list.rest[full..].to_vec();
}

/// A sorted part of a list while it is merged.
struct Part {
    /// Its block; none for what is in memory.
    block: Option<u32>,
    /// How many records were taken.
    taken: usize,
    records: Vec<Switch>,
}

impl Part {
    /// The next record.
    fn head(&mut self, file: &File) -> std::io::Result<Option<Switch>> {
        let Some(block) = self.block else { return Ok(self.records.get(self.taken).copied()) };
        if self.taken == BLOCK {
            return Ok(None);
        }
        if self.taken % MERGED == 0 {
            read(file, block, self.taken, MERGED, &mut self.records)?;
        }
        Ok(self.records.get(self.taken % MERGED).copied())
    }
}

/// Merges sorted blocks, and the rest, to a sorted list. Of records with the same time, the first one stays first.
fn merge(list: &mut List, blocks: &mut Blocks) -> std::io::Result<()> {
    let of_block = |(block, _)| Part { block: Some(block), taken: 0, records: Vec::new() };
    let mut parts: Vec<Part> = std::mem::take(&mut list.blocks).into_iter().map(of_block).collect();
    parts.push(Part { block: None, taken: 0, records: std::mem::take(&mut list.rest) });
    let mut heads = BinaryHeap::new();
    for (number, part) in parts.iter_mut().enumerate() {
        heads.extend(part.head(&blocks.file)?.map(|head| Reverse((head.time, number))));
    }
    let mut merged = Vec::with_capacity(BLOCK);
    while let Some(Reverse((_, number))) = heads.pop() {
        let part = &mut parts[number];
        merged.extend(part.head(&blocks.file)?);
        part.taken += 1;
        heads.extend(part.head(&blocks.file)?.map(|head| Reverse((head.time, number))));
        if merged.len() == BLOCK {
            list.blocks.push(blocks.write(&merged)?);
            merged.clear();
        }
    }
    list.rest = merged;
    Ok(())
}

/// Reads the records of a CPU in any order; fast if they are near each other.
pub struct Reader<'a> {
    list: &'a List,
    file: Option<&'a File>,
    /// The block in `records`.
    block: usize,
    records: Vec<Switch>,
}

impl Reader<'_> {
    pub fn get(&mut self, index: usize) -> Option<Switch> {
        let (block, within) = (index / BLOCK, index % BLOCK);
        let Some(&(place, _)) = self.list.blocks.get(block) else {
            return self.list.rest.get(index - self.list.blocks.len() * BLOCK).copied();
        };
        if self.block != block {
            // It was written by this process, and no other one knows the file. A disk may fail: then this panics, and the run ends
            // with an error.
            let file = self.file.expect("blocks are in a file");
            read(file, place, 0, BLOCK, &mut self.records).expect("the temporary file can be read");
            self.block = block;
        }
        self.records.get(within).copied()
    }

    /// How many records are not later than a time.
    pub fn n_until(&mut self, time: u64) -> usize {
        let blocks = &self.list.blocks;
        let begun = blocks.partition_point(|(_, first)| *first <= time);
        let in_rest = self.list.rest.partition_point(|s| s.time <= time);
        if begun == 0 || in_rest > 0 {
            return if begun == 0 && !blocks.is_empty() { 0 } else { blocks.len() * BLOCK + in_rest };
        }
        let _ = self.get((begun - 1) * BLOCK);
        (begun - 1) * BLOCK + self.records.partition_point(|s| s.time <= time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(time: u64, tid: i32) -> Switch {
        let other = (tid % 3 != 0).then_some((tid + 1, -tid));
        Switch { time, out: tid % 2 == 0, pid: tid + 7, tid, other }
    }

    fn all(switches: &Switches, cpu: i32) -> Vec<Switch> {
        let mut reader = switches.of(cpu).unwrap();
        (0..).map_while(|n| reader.get(n)).collect()
    }

    #[test]
    fn a_record_is_the_same_in_the_file() {
        for tid in [0, 1, 2, 3, i32::MAX - 7, -5] {
            let record = Switch { other: Some((tid, -1)), ..switch(1 << 63, tid) };
            assert_eq!(Switch::from_bytes(&record.to_bytes()), record);
            assert_eq!(Switch::from_bytes(&switch(5, tid).to_bytes()), switch(5, tid));
        }
    }

    #[test]
    fn records_in_the_file_are_those_in_memory() {
        // Of CPU 3 in order, of CPU 1 with steps back and equal times, of CPU 2 few.
        let n = 5 * BLOCK as u64 + 100;
        let (mut kept, mut filed) = (Switches::keeping(usize::MAX), Switches::keeping(3 * BLOCK));
        for at in 0..n {
            for switches in [&mut kept, &mut filed] {
                switches.push(3, switch(at, at as i32));
                switches.push(1, switch(at / 1000 * 1000 + at * 7919 % 1500, at as i32));
                if at % 1000 == 0 {
                    switches.push(2, switch(at, 5));
                }
            }
        }
        for switches in [&mut kept, &mut filed] {
            switches.finish().unwrap();
        }
        assert!(kept.blocks.is_none() && filed.blocks.is_some());
        assert_eq!(kept.len(), filed.len());
        for cpu in kept.cpus() {
            assert_eq!(all(&kept, cpu), all(&filed, cpu), "{cpu}");
            assert!(all(&kept, cpu).is_sorted_by_key(|s| s.time), "{cpu}");
            let (mut a, mut b) = (kept.of(cpu).unwrap(), filed.of(cpu).unwrap());
            for time in [0, 1, 999, 1000, 2047, 2048, 2049, 4096, 5000, n - 1, n, 2 * n] {
                let after = all(&kept, cpu).iter().filter(|s| s.time <= time).count();
                assert_eq!((a.n_until(time), b.n_until(time)), (after, after), "{cpu} {time}");
            }
        }
        // At most one block of each CPU is in memory.
        assert!(filed.lists.values().all(|list| list.rest.len() < BLOCK));
    }
}
