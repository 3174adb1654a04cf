// SPDX-License-Identifier: GPL-2.0-only
//! Symbols of the kernel and its modules, as /proc/kallsyms lists them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::symbols::{Binding, Symbol, Symbols};

pub const KERNEL: &str = "[kernel.kallsyms]";

/// Digits of an address, as the kernel writes them.
const DIGITS: usize = 16;
/// Bytes of a line, about.
const LINE: usize = 48;

/// Where user addresses end.
pub const KERNEL_BEGIN: u64 = 1 << 63;

/// Symbols by object, those of the kernel proper first. Their names stay where they are in the text: the kernel has
/// more than 100,000, and a window needs few of them.
pub fn parse(text: &'static [u8]) -> Vec<Symbols> {
    // To check each name takes longer than all of them at once.
    let whole = std::str::from_utf8(text).ok();
    let name = |range: Range<usize>| match whole.and_then(|whole| whole.get(range.clone())) {
        Some(name) => Cow::Borrowed(name),
        None => String::from_utf8_lossy(&text[range]),
    };
    let mut numbers: BTreeMap<&[u8], usize> = BTreeMap::from([(KERNEL.as_bytes(), 0)]);
    // Most symbols are the kernel's.
    let mut of_object: Vec<Vec<Symbol>> = vec![Vec::with_capacity(text.len() / LINE)];
    let mut last: (&[u8], usize) = (KERNEL.as_bytes(), 0);
    let ends = memchr::memchr_iter(b'\n', text).chain([text.len()]);
    let mut begin = 0;
    // A kallsyms has 10 MB: read the text only once.
    for end in ends {
        let mut words = Words { text, at: begin, end };
        begin = end + 1;
        let Some([address, kind, named]) = words.first() else { continue };
        let &[kind] = &text[kind] else { continue };
        // As perf does: skip absolute symbols and read-only data.
        if !matches!(kind, b't' | b'T' | b'w' | b'W' | b'd' | b'D' | b'b' | b'B') {
            continue;
        }
        let Some(start) = hex(&text[address]).filter(|&start| start >= KERNEL_BEGIN) else { continue };
        let binding = match kind {
            b'W' => Binding::Weak,
            b if b.is_ascii_uppercase() => Binding::Global,
            _ => Binding::Local,
        };
        let label = !matches!(kind, b't' | b'T' | b'w' | b'W');
        let symbol = Symbol { start, end: start, name: name(named), binding, label };
        let object = words.next().map_or(KERNEL.as_bytes(), |object| &text[object]);
        if object != last.0 {
            let number = *numbers.entry(object).or_insert(of_object.len());
            of_object.resize_with(of_object.len().max(number + 1), Vec::new);
            last = (object, number);
        }
        of_object[last.1].push(symbol);
    }
    let mut all = Vec::new();
    numbers.remove(KERNEL.as_bytes());
    for (object, number) in [(KERNEL.as_bytes(), 0)].into_iter().chain(numbers) {
        let symbols = std::mem::take(&mut of_object[number]);
        if symbols.is_empty() {
            continue;
        }
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

/// The words of a line, as ranges of the text.
struct Words<'a> {
    text: &'a [u8],
    at: usize,
    end: usize,
}

impl Words<'_> {
    /// Address, kind and name.
    fn first(&mut self) -> Option<[Range<usize>; 3]> {
        let begin = self.at;
        // The kernel writes addresses of 16 digits, and one space before and after the kind.
        if let [b' ', kind, b' ', name, ..] = self.text[..self.end].get(begin + DIGITS..).unwrap_or_default()
        {
            let is_word = |bytes: &[u8]| !bytes.iter().any(u8::is_ascii_whitespace);
            if is_word(&[*kind, *name]) && is_word(&self.text[begin..begin + DIGITS]) {
                self.at = begin + DIGITS + 3;
                let name = self.next()?;
                return Some([begin..begin + DIGITS, begin + DIGITS + 1..begin + DIGITS + 2, name]);
            }
        }
        Some([self.next()?, self.next()?, self.next()?])
    }
}

impl Iterator for Words<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        let line = &self.text[..self.end];
        let begin = self.at + line.get(self.at..)?.iter().position(|byte| !byte.is_ascii_whitespace())?;
        let length = line[begin..].iter().position(u8::is_ascii_whitespace);
        self.at = length.map_or(self.end, |length| begin + length);
        Some(begin..self.at)
    }
}

/// None: not a hexadecimal number of at most 64 bits.
fn hex(text: &[u8]) -> Option<u64> {
    let mut number = 0;
    for &byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        number = number << 4 | u64::from(digit);
    }
    (1..=16).contains(&text.len()).then_some(number)
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

    #[test]
    fn names_that_are_no_text_hide_no_others() {
        let text: &[u8] =
            b"ffffffff81000000 T _text\r\n\nffffffff81000040 t a\xff\n  FFFFFFFF81000050  t  b  [m]\n\
            fffffffff81000060 t too_long\nffffffff81000070 t kernel_again";
        let all = parse(text);
        let names: Vec<_> = all
            .iter()
            .map(|table| ["_text", "a\u{fffd}", "b", "kernel_again"].map(|n| table.address(n)))
            .collect();
        let at = |low: u64| Some(0xffff_ffff_8100_0000 + low);
        assert_eq!(names, [[at(0), at(0x40), None, at(0x70)], [None, None, at(0x50), None]]);
        assert!(parse(b"").is_empty());
    }
}
