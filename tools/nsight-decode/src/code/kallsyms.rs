// SPDX-License-Identifier: GPL-2.0-only
//! Symbols of the kernel and its modules, as /proc/kallsyms lists them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::symbols::{Binding, Symbol, Symbols};

pub const KERNEL: &str = "[kernel.kallsyms]";

/// Where user addresses end.
pub const KERNEL_BEGIN: u64 = 1 << 63;

/// Symbols by object, those of the kernel proper first. Their names stay where they are in the text: the kernel has
/// more than 100,000, and a window needs few of them.
pub fn parse(text: &'static [u8]) -> Vec<Symbols> {
    let mut by_object: BTreeMap<&[u8], Vec<Symbol>> = BTreeMap::new();
    let ends = memchr::memchr_iter(b'\n', text).chain([text.len()]);
    let mut begin = 0;
    // A kallsyms has 10 MB: read the text only once.
    for end in ends {
        let line = text.get(begin..end).unwrap_or_default();
        begin = end + 1;
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (Some(address), Some(&[kind]), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        // As perf does: skip absolute symbols and read-only data.
        if !matches!(kind, b't' | b'T' | b'w' | b'W' | b'd' | b'D' | b'b' | b'B') {
            continue;
        }
        let Some(start) = hex(address).filter(|&start| start >= KERNEL_BEGIN) else { continue };
        let binding = match kind {
            b'W' => Binding::Weak,
            b if b.is_ascii_uppercase() => Binding::Global,
            _ => Binding::Local,
        };
        let label = !matches!(kind, b't' | b'T' | b'w' | b'W');
        let name = String::from_utf8_lossy(name);
        let symbol = Symbol { start, end: start, name, binding, label };
        by_object.entry(words.next().unwrap_or(KERNEL.as_bytes())).or_default().push(symbol);
    }
    let mut all = Vec::new();
    let kernel = by_object.remove(KERNEL.as_bytes());
    let named = kernel.map(|symbols| (KERNEL.as_bytes(), symbols)).into_iter().chain(by_object);
    for (object, symbols) in named {
        let dso: Arc<str> = String::from_utf8_lossy(object).into();
        // perf uses the start of the next symbol as the end of each, and then prefers symbols that are not empty.
        let last = |_: &Symbol, _: &Symbol| true;
        all.push(Symbols::with_aliases(symbols, dso, last, |this, next| {
            // There are no symbols between the parts of the kernel.
            if next.start - this.start > 1 << 28 {
                (this.start / 4096 + 2) * 4096
            } else {
                next.start
            }
        }));
    }
    all
}

/// None: not a hexadecimal number of at most 64 bits.
fn hex(text: &[u8]) -> Option<u64> {
    let digit = |&byte: &u8| (byte as char).to_digit(16).map(u64::from);
    let short = !text.is_empty() && text.len() <= 16;
    text.iter()
        .filter(|_| short)
        .try_fold(0, |number, byte| Some(number << 4 | digit(byte)?))
        .filter(|_| short)
}

#[cfg(test)]
mod tests {
    use super::super::symbols::Interner;
    use super::*;

    const TEXT: &str = "0000000000000000 A fixed_percpu_data\n\
        ffffffff81000000 T _text\n\
        ffffffff81000040 t local\n\
        ffffffff81000040 T global\n\
        ffffffffc0201000 t netfs_read\t[netfs]\n\
        broken line\n\
        zzzz T x\n";

    #[test]
    fn modules_are_objects_of_their_own() {
        let all = parse(TEXT.as_bytes());
        let interner = Interner::default();
        let name = |table: &Symbols, address| {
            let (symbol, dso) = interner.get(table.find(address, &interner)?.id);
            Some((symbol.to_string(), dso.to_string()))
        };
        assert_eq!(all.len(), 2);
        assert_eq!(name(&all[0], 0xffff_ffff_8100_0050), Some(("global".into(), KERNEL.into())));
        assert_eq!(name(&all[1], 0xffff_ffff_c020_1004), Some(("netfs_read".into(), "[netfs]".into())));
        assert_eq!(all[0].address("_text"), Some(0xffff_ffff_8100_0000));
    }
}
