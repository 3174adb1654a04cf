// SPDX-License-Identifier: GPL-2.0-only
//! An ELF file that a process had mapped: its build id, symbols and addresses.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use memmap2::Mmap;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::{LittleEndian, Object as _};

use super::symbols::{Binding, Symbol, Symbols};
use crate::files;

type Elf<'a> = ElfFile64<'a, LittleEndian>;
const LE: LittleEndian = LittleEndian;

/// Symbols of larger tables are not read: 64 million.
const MAX_SYMBOLS: usize = 1 << 26;

pub struct Object {
    pub path: Arc<Path>,
    name: Arc<str>,
    map: Option<Mmap>,
    /// (file offset, size, address) of each loaded segment.
    segments: Vec<(u64, u64, u64)>,
    pub build_id: Option<Vec<u8>>,
    symbols: OnceLock<Symbols>,
    /// Where debug files are searched: the root of the file system that the object comes from.
    root: PathBuf,
}

impl Object {
    /// A regular file at `path`; `name` is its name on the machine where it ran.
    pub fn new(file: &File, path: &Path, name: &str, root: &Path) -> Result<Self, String> {
        if file.metadata().is_ok_and(|m| m.len() == 0) {
            return Err("empty".into());
        }
        // SAFETY: as for perf.data: a program is not written while it is read.
        let map = unsafe { Mmap::map(file) }.map_err(|e| e.to_string())?;
        let (segments, build_id) = {
            let elf = Elf::parse(&*map).map_err(|_| "no 64-bit ELF file".to_owned())?;
            if elf.elf_header().e_machine(LE) != elf::EM_X86_64 {
                return Err("for another processor than x86-64".into());
            }
            let segments = elf.elf_program_headers().iter();
            let segments = segments
                .filter(|p| p.p_type(LE) == elf::PT_LOAD)
                .map(|p| (p.p_offset(LE), p.p_filesz(LE), p.p_vaddr(LE)))
                .collect();
            (segments, elf.build_id().ok().flatten().map(<[u8]>::to_vec))
        };
        Ok(Self {
            path: path.into(),
            name: name.into(),
            map: Some(map),
            segments,
            build_id,
            symbols: OnceLock::new(),
            root: root.to_owned(),
        })
    }

    /// Address in the object of an offset in its file.
    pub fn address(&self, offset: u64) -> Option<u64> {
        let inside = |&&(begin, size, _): &&(u64, u64, u64)| offset >= begin && offset - begin < size;
        self.segments.iter().find(inside).map(|&(begin, _, address)| address.wrapping_add(offset - begin))
    }

    /// How many of `size` bytes, beginning at an offset, the file has: a recording may contain any size.
    pub fn held(&self, offset: u64, size: u64) -> u64 {
        let length = self.map.as_ref().map_or(0, |map| map.len() as u64);
        size.min(length.saturating_sub(offset))
    }

    pub fn symbols(&self) -> &Symbols {
        self.symbols.get_or_init(|| {
            let mut symbols = Vec::new();
            if let Some(elf) = self.map.as_ref().and_then(|map| Elf::parse(&**map).ok()) {
                // As perf: a stripped program has a table of three symbols in addition to the dynamic one.
                if table(&elf, elf::SHT_SYMTAB, &mut symbols) || !self.debug_file(&mut symbols) {
                    table(&elf, elf::SHT_DYNSYM, &mut symbols);
                }
                plt(&elf, &mut symbols);
            }
            Symbols::new(symbols, self.name.clone(), |_, next| next.start)
        })
    }

    /// Address of a symbol: of any type, and also if it is one of several at the same address.
    pub fn symbol_address(&self, name: &str) -> Option<u64> {
        let elf = Elf::parse(&**self.map.as_ref()?).ok()?;
        let table = elf.elf_section_table().symbols(LE, elf.data(), elf::SHT_SYMTAB).ok()?;
        let named = |s: &&elf::Sym64<_>| table.symbol_name(LE, *s).is_ok_and(|n| n == name.as_bytes());
        table.iter().take(MAX_SYMBOLS).find(named).map(|s| s.st_value(LE))
    }

    /// Its symbols at addresses moved by `slide`.
    pub fn into_symbols(self, slide: u64) -> Symbols {
        self.symbols();
        match self.symbols.into_inner() {
            Some(symbols) => symbols.moved(slide),
            None => Symbols::new(Vec::new(), self.name, |_, next| next.start),
        }
    }

    /// Symbols of the debug file that belongs to the build id.
    fn debug_file(&self, symbols: &mut Vec<Symbol>) -> bool {
        let Some(id) = self.build_id.as_ref().filter(|id| id.len() > 1) else { return false };
        let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
        let path = format!("usr/lib/debug/.build-id/{}/{}.debug", &hex[..2], &hex[2..]);
        let Ok((file, _)) = files::open_below(&self.root, Path::new(&path)) else { return false };
        // SAFETY: as above.
        let Ok(map) = (unsafe { Mmap::map(&file) }) else { return false };
        Elf::parse(&*map).is_ok_and(|elf| table(&elf, elf::SHT_SYMTAB, symbols))
    }
}

/// Adds the functions of a symbol table. False: there is no such table.
fn table(elf: &Elf, kind: object::elf::SectionType, symbols: &mut Vec<Symbol>) -> bool {
    let Ok(table) = elf.elf_section_table().symbols(LE, elf.data(), kind) else { return false };
    if table.is_empty() {
        return false;
    }
    for symbol in table.iter().take(MAX_SYMBOLS) {
        let kind = symbol.st_type();
        let function = kind == elf::STT_FUNC || kind == elf::STT_GNU_IFUNC;
        let label = kind == elf::STT_NOTYPE;
        let section = symbol.st_shndx(LE);
        let defined = section != elf::SHN_UNDEF && section != elf::SHN_ABS;
        if !(function || label) || !defined {
            continue;
        }
        let Ok(name) = table.symbol_name(LE, symbol) else { continue };
        if name.is_empty() {
            continue;
        }
        let start = symbol.st_value(LE);
        symbols.push(Symbol {
            start,
            end: start.saturating_add(symbol.st_size(LE)),
            name: String::from_utf8_lossy(name).into_owned().into(),
            binding: match symbol.st_bind() {
                elf::STB_GLOBAL => Binding::Global,
                elf::STB_WEAK => Binding::Weak,
                _ => Binding::Local,
            },
            label,
        });
    }
    true
}

/// Names for the procedure linkage table: the target of each entry, in the form that perf and gdb use.
fn plt(elf: &Elf, symbols: &mut Vec<Symbol>) {
    let data = elf.data();
    let sections = elf.elf_section_table();
    let section = |name: &[u8]| sections.section_by_name(LE, name).map(|(_, s)| s);
    let Some(relocations) = section(b".rela.plt") else { return };
    // With indirect branch tracking, calls use .plt.sec, which has no header.
    let (plt, header) = match (section(b".plt.sec"), section(b".plt")) {
        (Some(plt), _) => (plt, 0),
        (None, Some(plt)) => (plt, 1),
        (None, None) => return,
    };
    let entry = 16;
    let Ok(Some((list, link))) = relocations.rela(LE, data) else { return };
    let Ok(table) = sections.symbol_table_by_index(LE, data, link) else { return };
    let room = (plt.sh_size(LE) / entry).saturating_sub(header) as usize;
    for (index, relocation) in list.iter().enumerate().take(room.min(MAX_SYMBOLS)) {
        let number = relocation.r_sym(LE, false) as usize;
        // Without a symbol: the target is chosen when the object is loaded.
        let name = table.symbol(object::SymbolIndex(number)).and_then(|s| table.symbol_name(LE, s));
        let Ok(name) = name else { continue };
        let start = plt.sh_addr(LE).wrapping_add((index as u64 + header) * entry);
        symbols.push(Symbol {
            start,
            end: start.wrapping_add(entry),
            name: format!("{}@plt", String::from_utf8_lossy(name)).into(),
            binding: Binding::Global,
            label: false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Directory;

    #[test]
    fn of_a_mapping_counts_what_the_file_has() {
        let directory = Directory::new();
        let path = directory.path().join("program");
        let mut bytes = vec![0; 64];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[18] = 62;
        std::fs::write(&path, bytes).unwrap();
        let object = Object::new(&files::open(&path).unwrap(), &path, "/program", directory.path()).unwrap();
        assert_eq!(
            [(0, 16), (60, 16), (0, u64::MAX), (100, 1)].map(|(at, n)| object.held(at, n)),
            [16, 4, 64, 0]
        );
    }
}
