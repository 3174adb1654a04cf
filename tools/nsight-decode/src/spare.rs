// SPDX-License-Identifier: GPL-2.0-only
//! Memory of large vectors, to be used again: the kernel clears each page of new memory, which took a tenth of the time.

use std::sync::{Mutex, MutexGuard};

/// Empty vectors that threads pass on to each other.
pub struct Spare<T> {
    kept: Mutex<Vec<Vec<T>>>,
    /// How many are kept, and of which capacity: neither small nor unusually large ones.
    most: usize,
    capacity: usize,
}

impl<T> Spare<T> {
    /// Keeps at most so many vectors with room for `capacity` values, or up to twice as many.
    pub fn new(most: usize, capacity: usize) -> Self {
        Self { kept: Mutex::default(), most, capacity }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Vec<T>>> {
        self.kept.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// An empty vector with room for `n` values.
    pub fn get(&self, n: usize) -> Vec<T> {
        // Little memory costs nothing.
        let kept = if n > self.capacity / 2 { self.kept().pop() } else { None };
        let mut values = kept.unwrap_or_default();
        values.reserve(n);
        values
    }

    /// Takes a vector that is not needed any more.
    pub fn put(&self, mut values: Vec<T>) {
        if !(self.capacity..=2 * self.capacity).contains(&values.capacity()) {
            return;
        }
        values.clear();
        let mut kept = self.kept();
        if kept.len() < self.most {
            kept.push(values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_up_to_a_limit() {
        let spare = Spare::new(2, 100);
        let vectors: Vec<Vec<u64>> = (0..3).map(|_| spare.get(100)).collect();
        let places: Vec<_> = vectors.iter().map(|v| v.as_ptr()).collect();
        for mut values in vectors {
            values.push(1);
            spare.put(values);
        }
        assert_eq!(spare.kept().len(), 2);
        spare.put(Vec::with_capacity(10));
        spare.put(Vec::with_capacity(1000));
        assert_eq!(spare.kept().len(), 2, "neither small nor large ones");
        let again = [spare.get(90), spare.get(100)];
        assert!(again.iter().all(|v| v.is_empty() && v.capacity() >= 100 && places.contains(&v.as_ptr())));
        assert!(spare.kept().is_empty());
    }
}
