// SPDX-License-Identifier: GPL-2.0-only
//! Symbols of one object, chosen among aliases as perf does, and their numbers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Names with their objects; a number is an index. 0: unknown.
#[derive(Default)]
pub struct Interner {
    inner: Mutex<Interned>,
}

#[derive(Default)]
struct Interned {
    ids: HashMap<(Arc<str>, Arc<str>), u32>,
    names: Vec<(Arc<str>, Arc<str>)>,
}

impl Interner {
    pub fn id(&self, symbol: &str, dso: &Arc<str>) -> u32 {
        let mut inner = self.inner.lock().unwrap_or_else(|e| e.into_inner());
        if inner.names.is_empty() {
            let empty: Arc<str> = "".into();
            inner.names.push((empty.clone(), empty.clone()));
            inner.ids.insert((empty.clone(), empty), 0);
        }
        let key: (Arc<str>, Arc<str>) = (symbol.into(), dso.clone());
        if let Some(&id) = inner.ids.get(&key) {
            return id;
        }
        let id = inner.names.len() as u32;
        inner.names.push(key.clone());
        inner.ids.insert(key, id);
        id
    }

    /// (symbol, dso) of a number.
    pub fn get(&self, id: u32) -> (Arc<str>, Arc<str>) {
        let inner = self.inner.lock().unwrap_or_else(|e| e.into_inner());
        inner.names.get(id as usize).cloned().unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    Global,
    Weak,
    Local,
}

/// A symbol as its table has it. `end` equals `start` if the size is not known.
#[derive(Clone, Debug)]
pub struct Symbol {
    pub start: u64,
    pub end: u64,
    pub name: Cow<'static, str>,
    pub binding: Binding,
    /// Neither a function nor an object: an assembly label.
    pub label: bool,
}

/// Whether perf would prefer `a` to `b`, which it met before at the same address: choose_best_symbol() of
/// tools/perf/util/symbol.c.
fn is_better(a: &Symbol, b: &Symbol) -> bool {
    let underscores = |s: &Symbol| s.name.bytes().take_while(|&b| b == b'_').count();
    let rank = |s: &Symbol| {
        (
            s.end > s.start,
            !s.label,
            s.binding != Binding::Weak,
            s.binding == Binding::Global,
            usize::MAX - underscores(s),
            s.name.len(),
        )
    };
    match rank(a).cmp(&rank(b)) {
        // The symbol that comes first in the table.
        std::cmp::Ordering::Equal => b.name.starts_with("SyS") || b.name.starts_with("compat_SyS"),
        order => order.is_gt(),
    }
}

/// The symbol at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub id: u32,
    pub start: u64,
    pub end: u64,
}

pub struct Symbols {
    symbols: Vec<Symbol>,
    ids: Vec<AtomicU32>,
    dso: Arc<str>,
}

impl Symbols {
    /// `gap` gives the end of a symbol without size, from that symbol and the next one.
    pub fn new(symbols: Vec<Symbol>, dso: Arc<str>, gap: impl Fn(&Symbol, &Symbol) -> u64) -> Self {
        Self::with_aliases(symbols, dso, is_better, gap)
    }

    /// `better`: whether the first of two symbols at one address, which comes later, is preferred.
    pub fn with_aliases(
        mut symbols: Vec<Symbol>,
        dso: Arc<str>,
        better: impl Fn(&Symbol, &Symbol) -> bool,
        gap: impl Fn(&Symbol, &Symbol) -> u64,
    ) -> Self {
        symbols.sort_by_key(|s| s.start);
        symbols.dedup_by(|later, kept| {
            if later.start != kept.start {
                return false;
            }
            if better(later, kept) {
                std::mem::swap(later, kept);
            }
            true
        });
        for index in 1..symbols.len() {
            let (before, behind) = symbols.split_at_mut(index);
            let (this, next) = (&mut before[index - 1], &behind[0]);
            if this.end <= this.start {
                this.end = gap(this, next);
            }
        }
        if let Some(last) = symbols.last_mut().filter(|s| s.end <= s.start) {
            last.end = (last.start / 4096 + 2).saturating_mul(4096);
        }
        let ids = symbols.iter().map(|_| AtomicU32::new(0)).collect();
        Self { symbols, ids, dso }
    }

    /// The symbol at an address of the object.
    pub fn find(&self, address: u64, interner: &Interner) -> Option<Found> {
        let at = self.symbols.partition_point(|s| s.start <= address);
        // A symbol within another one hides it only up to its end.
        let near = at.saturating_sub(8)..at;
        let index = near.rev().find(|&i| address < self.symbols[i].end)?;
        let symbol = &self.symbols[index];
        let mut id = self.ids[index].load(Ordering::Relaxed);
        if id == 0 {
            id = interner.id(&demangle(&symbol.name), &self.dso);
            self.ids[index].store(id, Ordering::Relaxed);
        }
        let end = self.symbols.get(at).map_or(symbol.end, |next| next.start.min(symbol.end));
        // After a symbol that lies within this one: valid only from this address up to the next symbol.
        let start = if index + 1 == at { symbol.start } else { address };
        Some(Found { id, start, end: end.max(address + 1) })
    }

    pub fn moved(mut self, by: u64) -> Self {
        for symbol in &mut self.symbols {
            (symbol.start, symbol.end) = (symbol.start.wrapping_add(by), symbol.end.wrapping_add(by));
        }
        self
    }

    /// Address of a symbol by its name.
    pub fn address(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|s| s.name == name).map(|s| s.start)
    }
}

/// The name as perf shows it: C++ and Rust names demangled, others unchanged.
fn demangle(name: &str) -> String {
    // Longer names are generated by machines, and nobody reads them.
    if name.len() > 4096 {
        return name.to_owned();
    }
    if let Some(target) = name.strip_suffix("@plt") {
        return format!("{}@plt", demangle(target));
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    if !name.starts_with("_Z") {
        return name.to_owned();
    }
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type().recursion_limit(64);
    cpp_demangle::Symbol::new(name)
        .ok()
        .and_then(|symbol| symbol.demangle_with_options(&options).ok())
        .unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(start: u64, end: u64, name: &str, binding: Binding) -> Symbol {
        Symbol { start, end, name: name.to_owned().into(), binding, label: false }
    }

    fn name(symbols: &Symbols, address: u64) -> Option<String> {
        let interner = Interner::default();
        let found = symbols.find(address, &interner)?;
        Some(interner.get(found.id).0.to_string())
    }

    fn table(symbols: Vec<Symbol>) -> Symbols {
        Symbols::new(symbols, "x".into(), |_, next| next.start)
    }

    #[test]
    fn aliases_are_chosen_as_perf_does() {
        use Binding::*;
        let best = |a: Symbol, b: Symbol| {
            let one = name(&table(vec![a.clone(), b.clone()]), 5);
            assert_eq!(one, name(&table(vec![b, a]), 5));
            one.unwrap()
        };
        assert_eq!(best(symbol(0, 9, "w", Weak), symbol(0, 9, "__strong", Global)), "__strong");
        assert_eq!(best(symbol(0, 9, "local", Local), symbol(0, 9, "g", Global)), "g");
        assert_eq!(best(symbol(0, 9, "__read", Global), symbol(0, 9, "read", Global)), "read");
        assert_eq!(best(symbol(0, 9, "memcpy", Global), symbol(0, 9, "memmove", Global)), "memmove");
        assert_eq!(best(symbol(0, 0, "sizeless_long", Global), symbol(0, 9, "a", Local)), "a");
    }

    #[test]
    fn a_symbol_without_size_ends_at_the_next() {
        let t =
            table(vec![symbol(0x10, 0x10, "a", Binding::Global), symbol(0x20, 0x28, "b", Binding::Global)]);
        assert_eq!(name(&t, 0x1f).as_deref(), Some("a"));
        assert_eq!(name(&t, 0x27).as_deref(), Some("b"));
        assert_eq!((name(&t, 0x28), name(&t, 0xf)), (None, None));
    }

    #[test]
    fn one_within_another_hides_it_only_as_far_as_it_goes() {
        let g = Binding::Global;
        let t = table(vec![symbol(0x10, 0x40, "outer", g), symbol(0x20, 0x24, "inner", g)]);
        assert_eq!(name(&t, 0x22).as_deref(), Some("inner"));
        let t = table(vec![symbol(0x10, 0x40, "outer", g), symbol(0x20, 0x24, "inner", g)]);
        assert_eq!(name(&t, 0x30).as_deref(), Some("outer"));
        assert_eq!(t.find(0x12, &Interner::default()).unwrap().end, 0x20);
    }

    #[test]
    fn names_are_demangled() {
        assert_eq!(demangle("_ZN3foo3barEi"), "foo::bar");
        assert_eq!(demangle("_ZN4core3ptr8null_mut17h0123456789abcdefE"), "core::ptr::null_mut");
        assert_eq!(demangle("tcp_v4_rcv"), "tcp_v4_rcv");
        assert_eq!(demangle("_Zbroken"), "_Zbroken");
    }

    #[test]
    fn number_0_is_unknown() {
        let interner = Interner::default();
        let dso: Arc<str> = "d".into();
        assert_eq!((interner.id("a", &dso), interner.id("b", &dso), interner.id("a", &dso)), (1, 2, 1));
        assert_eq!(&*interner.get(0).0, "");
    }
}
