// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's code over time: a copy of it, with changed and added code laid over it.
//!
//! A PT decoder needs the code as it was when it ran. TEXT_POKE records have the old and the new bytes of each change.
//! KSYMBOL records report when BPF programs were added and removed. `epoch` numbers the intervals of time between these
//! events. Each page gets one libipt section for each state that it had.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bpf::{self, BpfCode};
use super::kallsyms::{self, KERNEL_BEGIN};
use super::sections::{MemoryFile, Piece};
use super::symbols::{Found, Interner, Symbols};
use crate::error::{Error, Result};
use crate::files;
use crate::packets::index;
use crate::perfdata::layout::{feature, u16_at, u32_at, u64_at};
use crate::perfdata::{Ksymbol, Poke, Recording};

const PAGE: u64 = 4096;
/// A kcore maps all memory; kernel code begins at this address.
const CODE_BEGIN: u64 = 0xffff_ffff_8000_0000;
/// Larger pieces are not code.
const MAX_SEGMENT: u64 = 1 << 31;
/// Limit for the bytes of segments that are copied in order to be changed.
const MAX_COPY: u64 = 1 << 28;
/// How many changes during the trace are followed: each takes a page.
const MAX_POKES: usize = 1 << 15;

/// Bytes of a file at an address.
struct Segment {
    address: u64,
    size: u64,
    offset: u64,
}

impl Segment {
    fn piece(&self, path: Arc<Path>, offset: u64) -> Piece {
        Piece { path, offset, size: self.size, address: self.address }
    }
}

/// A piece that is laid over the base from one time to another.
struct Layer {
    from: u64,
    to: u64,
    piece: Piece,
}

#[derive(Default)]
pub struct Kernel {
    symbols: Vec<Symbols>,
    base: Vec<Piece>,
    layers: Vec<Layer>,
    ksymbols: Vec<(Ksymbol, u64, Arc<str>)>,
    changes: Vec<u64>,
    /// Changes during the trace beyond those that are followed.
    pub pokes_left_out: usize,
    /// Address at which the next thread replaces the current one.
    pub switch_ip: Option<u64>,
    /// Keeps the file with the layers' code open.
    _memory: Option<MemoryFile>,
}

/// Begin of the trace, ns: earlier states of the code need not be distinguished.
fn first_time(recording: &Recording) -> u64 {
    let first = |chunks: &Vec<crate::perfdata::Chunk>| index::first_tsc(chunks, recording);
    let tsc = recording.streams.values().filter_map(first).min();
    tsc.map_or(0, |tsc| recording.info.conv.ns(tsc))
}

/// Where the kernel's code is taken from.
#[derive(Clone, Debug, Default)]
pub struct KernelSource {
    /// A directory with kcore, kallsyms (and modules): kcore_dir, or /proc.
    pub kcore: Option<PathBuf>,
    pub vmlinux: Option<PathBuf>,
}

impl Kernel {
    pub fn load(recording: &Recording, source: &KernelSource) -> Result<Self> {
        let own = recording.file.directory.as_ref().map(|directory| directory.join("kcore_dir"));
        let directory = source.kcore.clone().or(own.filter(|own| own.is_dir()));
        let hint =
            "give the directory that has kcore and kallsyms: PERF_DATA/kcore_dir, or /proc of the same boot";
        let symbols = || -> Result<Vec<Symbols>> {
            let Some(directory) = &directory else { return Ok(Vec::new()) };
            let text =
                files::open_below(directory, Path::new("kallsyms")).and_then(|(file, _)| files::text(file));
            Ok(kallsyms::parse(text.map_err(|e| Error::input(&directory.join("kallsyms"), e, hint))?))
        };
        let mut kernel = Self::default();
        let mut file = None;
        if let Some(directory) = &directory {
            let failed = |e| Error::input(&directory.join("kcore"), e, hint);
            let (code, path) = files::open_below(directory, Path::new("kcore")).map_err(failed)?;
            let segments = segments(&code, 0).map_err(failed)?;
            file = Some((code, path, segments));
        }
        let mut vmlinux = None;
        if let Some(path) = &source.vmlinux {
            let hint = "give the vmlinux (not vmlinuz) of the kernel that was recorded";
            let damaged = |e: std::io::Error| Error::input(path, e, hint);
            let code = files::open(path).map_err(damaged)?;
            let object = super::object::Object::new(&code, path, kallsyms::KERNEL, Path::new("/"))
                .map_err(|e| Error::input(path, e, hint))?;
            let Some(slide) = slide(recording, &object) else {
                let what = "has no symbol that tells how far the kernel was moved (KASLR)";
                return Err(Error::input(path, what, "give the vmlinux with its symbol table, or kcore"));
            };
            let segments = segments(&code, slide).map_err(damaged)?;
            file = Some((code, path.clone(), segments));
            vmlinux = Some((object, slide));
        }
        // Both take as long as decoding some MB.
        let (symbols, laid) = std::thread::scope(|scope| {
            let symbols = std::thread::Builder::new().spawn_scoped(scope, symbols);
            let laid = match &file {
                Some((code, path, segments)) => kernel.lay_over(recording, code, path, segments),
                None => Ok(()),
            };
            let joined =
                symbols.map_err(|e| Error::memory(format_args!("no thread: {e}"))).and_then(|thread| {
                    thread.join().unwrap_or_else(|_| Err(Error::bug("kallsyms could not be read")))
                });
            (joined, laid)
        });
        (kernel.symbols, _) = (symbols?, laid?);
        if let Some((object, slide)) = vmlinux.filter(|_| kernel.symbols.is_empty()) {
            kernel.symbols = vec![object.into_symbols(slide)];
        }
        kernel.switch_ip = kernel.symbols.first().and_then(|s| s.address("__switch_to"));
        Ok(kernel)
    }

    /// Loads code only.
    #[cfg(fuzzing)]
    pub(super) fn of_kcore(recording: &Recording, file: &File, path: &Path) -> Result<Self> {
        let segments = segments(file, 0).map_err(|e| Error::input(path, e, ""))?;
        let mut kernel = Self::default();
        kernel.lay_over(recording, file, path, &segments)?;
        Ok(kernel)
    }

    pub fn is_known(&self) -> bool {
        !self.base.is_empty()
    }

    fn lay_over(
        &mut self,
        recording: &Recording,
        file: &File,
        path: &Path,
        segments: &[Segment],
    ) -> Result<()> {
        let code = recording.file.feature(feature::BPF_PROG_INFO).map(bpf::programs).unwrap_or_default();
        self.ksymbols = lifetimes(&recording.side.ksymbols);
        let settled = first_time(recording);
        let pokes = &recording.side.pokes;
        let later = pokes.partition_point(|poke| poke.time <= settled);
        let kept = pokes.len().min(later + MAX_POKES);
        self.pokes_left_out = pokes.len() - kept;
        let pages = pages(&pokes[..kept], settled, |address, page| {
            let inside = |s: &&Segment| address >= s.address && address - s.address + PAGE <= s.size;
            segments
                .iter()
                .find(inside)
                .is_some_and(|s| file.read_exact_at(page, s.offset + (address - s.address)).is_ok())
        });

        // libipt checks that a file has not changed since a section of it was made: write everything before that.
        let mut memory = MemoryFile::new()?;
        let (mut planned, mut copies, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        let mut copied = 0;
        for segment in segments {
            // Changes from before the trace are part of the base: fewer pieces are faster.
            let mut of_this = pages.range(segment.address..segment.address + segment.size).peekable();
            if of_this.peek().is_none() || segment.size > MAX_COPY - copied {
                self.base.push(segment.piece(path.into(), segment.offset));
                whole.push(segment.address..segment.address + segment.size);
                continue;
            }
            let at = memory
                .copy(file, segment.offset, segment.size)
                .map_err(|e| Error::input(path, e, "is it cut?"))?;
            for (address, versions) in of_this {
                memory.put(at + (address - segment.address), &versions[0].1)?;
            }
            copied += segment.size;
            copies.push((at, segment));
        }
        // For segments that are not copied, each page that ever changed is laid over.
        let uncopied = |address: &u64| whole.iter().any(|range| range.contains(address));
        for (address, versions) in pages.iter().filter(|(at, versions)| versions.len() > 1 || uncopied(at)) {
            for (index, (from, page)) in versions.iter().enumerate() {
                let to = versions.get(index + 1).map_or(u64::MAX, |(to, _)| *to);
                planned.push((*from, to, *address, memory.push(page)?, PAGE));
            }
        }
        for BpfCode { address, code } in &code {
            let (from, to) = self
                .ksymbols
                .iter()
                .rev()
                .find(|(k, _, _)| k.address == *address && u64::from(k.size) >= code.len() as u64)
                .map_or((0, u64::MAX), |(k, to, _)| (k.time, *to));
            planned.push((from, to, *address, memory.push(code)?, code.len() as u64));
        }
        for (offset, segment) in copies {
            self.base.push(segment.piece(memory.path(), offset));
        }
        // A later piece covers an earlier one.
        planned.sort_by_key(|p| p.0);
        let mut changes = BTreeSet::new();
        for (from, to, address, offset, size) in planned {
            changes.extend([from, to]);
            let piece = Piece { path: memory.path(), offset, size, address };
            self.layers.push(Layer { from, to, piece });
        }
        changes.extend(self.ksymbols.iter().flat_map(|(k, to, _)| [k.time, *to]));
        self.changes = changes.into_iter().filter(|&t| t != 0 && t != u64::MAX).collect();
        self._memory = Some(memory);
        Ok(())
    }

    /// The interval without changes that contains a time, and the end of that interval.
    pub fn epoch(&self, time: u64) -> (usize, u64) {
        let epoch = self.changes.partition_point(|&change| change <= time);
        (epoch, self.changes.get(epoch).copied().unwrap_or(u64::MAX))
    }

    /// The kernel's code at a time; a later piece covers an earlier one.
    pub fn pieces(&self, time: u64) -> impl Iterator<Item = &Piece> {
        let layers = self.layers.iter().filter(move |l| l.from <= time && time < l.to).map(|l| &l.piece);
        self.base.iter().chain(layers)
    }

    pub fn find(&self, address: u64, time: u64, interner: &Interner) -> Option<Found> {
        let inside = |(k, to, _): &&(Ksymbol, u64, Arc<str>)| {
            address >= k.address && address - k.address < u64::from(k.size) && k.time <= time && time < *to
        };
        if let Some((k, _, name)) = self.ksymbols.iter().rev().find(inside) {
            let id = interner.id(name, name);
            return Some(Found { id, start: k.address, end: k.address.saturating_add(u64::from(k.size)) });
        }
        self.symbols.iter().find_map(|symbols| symbols.find(address, interner))
    }
}

/// The program headers of a kcore or vmlinux whose code is the kernel's.
fn segments(file: &File, slide: u64) -> std::io::Result<Vec<Segment>> {
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0)?;
    if &header[..6] != b"\x7fELF\x02\x01" {
        return Err(std::io::Error::other("no 64-bit ELF file"));
    }
    let (at, size, n) = (u64_at(&header, 32), u64::from(u16_at(&header, 54)), u64::from(u16_at(&header, 56)));
    let mut segments = Vec::new();
    for index in 0..n {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, at.saturating_add(index * size))?;
        let segment = Segment {
            address: u64_at(&entry, 16).wrapping_add(slide),
            size: u64_at(&entry, 32),
            offset: u64_at(&entry, 8),
        };
        let loaded = u32_at(&entry, 0) == 1 && segment.size > 0;
        let ends = |begin: u64| begin.checked_add(segment.size).is_some();
        let ends = ends(segment.address) && ends(segment.offset);
        if loaded && ends && segment.address >= CODE_BEGIN && segment.size <= MAX_SEGMENT {
            segments.push(segment);
        }
    }
    if segments.is_empty() {
        return Err(std::io::Error::other("has no kernel code"));
    }
    // In a sparse file, segments can be much larger than the file, and each could be copied. Without overlap, their sum
    // is limited by the address space.
    segments.sort_by_key(|s| s.address);
    if segments.windows(2).any(|two| two[1].address - two[0].address < two[0].size) {
        return Err(std::io::Error::other("has segments that overlap: it is damaged"));
    }
    Ok(segments)
}

/// How far the kernel was moved when it was loaded: the kernel's MMAP record has the name and the address of a symbol.
fn slide(recording: &Recording, vmlinux: &super::object::Object) -> Option<u64> {
    let all = recording.side.kernel_maps.iter();
    let mut named = all.filter_map(|m| Some((m, m.name.strip_prefix("[kernel.kallsyms]")?))).peekable();
    if named.peek().is_none() {
        return Some(0);
    }
    named.find_map(|(map, symbol)| Some(map.offset.wrapping_sub(vmlinux.symbol_address(symbol)?)))
}

/// The lifetime of each symbol: begin and end.
fn lifetimes(records: &[Ksymbol]) -> Vec<(Ksymbol, u64, Arc<str>)> {
    let mut all: Vec<(Ksymbol, u64, Arc<str>)> = Vec::new();
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    for record in records.iter().filter(|r| r.address >= KERNEL_BEGIN && r.size > 0) {
        if let Some(index) = live.remove(&record.address) {
            all[index].1 = record.time;
        }
        if !record.unregister {
            live.insert(record.address, all.len());
            all.push((record.clone(), u64::MAX, record.name.as_str().into()));
        }
    }
    all
}

/// Pages that were changed: for each, its versions (begin, content) in order. Versions from before `settled` are merged
/// into one. `base` copies a page.
fn pages(
    pokes: &[Poke],
    settled: u64,
    base: impl Fn(u64, &mut [u8]) -> bool,
) -> BTreeMap<u64, Vec<(u64, [u8; PAGE as usize])>> {
    let mut by_page: BTreeMap<u64, Vec<&Poke>> = BTreeMap::new();
    for poke in pokes.iter().filter(|p| p.address >= KERNEL_BEGIN) {
        let length = poke.new.len().max(poke.old.len()) as u64;
        let last = poke.address.saturating_add(length.max(1) - 1);
        for page in poke.address / PAGE..=last / PAGE {
            by_page.entry(page * PAGE).or_default().push(poke);
        }
    }
    let mut pages = BTreeMap::new();
    for (address, pokes) in by_page {
        let mut page = [0; PAGE as usize];
        if !base(address, &mut page) {
            continue;
        }
        let put = |page: &mut [u8], at: u64, bytes: &[u8]| {
            for (n, &byte) in bytes.iter().enumerate() {
                let offset = at.wrapping_add(n as u64).wrapping_sub(address);
                if let Some(slot) = page.get_mut(offset as usize) {
                    *slot = byte;
                }
            }
        };
        // Restores the page before the first change, whenever the base was copied: undo later pokes first.
        for poke in pokes.iter().rev() {
            put(&mut page, poke.address, &poke.old);
        }
        let n_settled = pokes.partition_point(|poke| poke.time <= settled);
        for poke in &pokes[..n_settled] {
            put(&mut page, poke.address, &poke.new);
        }
        let mut versions = vec![(0, page)];
        for poke in &pokes[n_settled..] {
            put(&mut page, poke.address, &poke.new);
            versions.push((poke.time, page));
        }
        pages.insert(address, versions);
    }
    pages
}

#[cfg(test)]
mod tests;
