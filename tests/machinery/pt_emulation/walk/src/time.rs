// SPDX-License-Identifier: GPL-2.0-only
//! Exact times from instruction counts.
//!
//! An instruction takes one tick of the TSC. Time jumps only while every CPU is halted. So one TSC reading between two
//! wake-ups gives the time of everything in that interval, including what came before the reading.

/// A reading of the TSC: `tsc` after `count` instructions, in interval `interval`.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    interval: u32,
    count: u64,
    offset: u64,
}

/// Collects readings while instructions are counted; then returns times.
#[derive(Debug, Default)]
pub struct Clock {
    /// Instructions since the log began, of all CPUs.
    pub count: u64,
    /// Wake-ups so far.
    pub interval: u32,
    anchors: Vec<Anchor>,
    /// Largest difference between a reading and the prediction from the previous one.
    pub max_disagreement: u64,
    pub n_disagreements: u64,
}

/// A place in time, used until the readings around it are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub interval: u32,
    pub count: u64,
}

impl Clock {
    pub fn here(&self) -> Place {
        Place { interval: self.interval, count: self.count }
    }

    /// The CPU ran again after it had halted: time may have jumped.
    pub fn wake(&mut self) {
        self.interval += 1;
    }

    pub fn n_readings(&self) -> usize {
        self.anchors.len()
    }

    /// The instruction that was counted last read the TSC.
    pub fn reading(&mut self, tsc: u64) {
        let offset = tsc.wrapping_sub(self.count);
        if let Some(last) = self.anchors.last().filter(|a| a.interval == self.interval) {
            let apart = (offset.wrapping_sub(last.offset) as i64).unsigned_abs();
            self.max_disagreement = self.max_disagreement.max(apart);
            self.n_disagreements += u64::from(apart != 0);
        }
        self.anchors.push(Anchor { interval: self.interval, count: self.count, offset });
    }

    /// Times of places; these must be requested in order.
    pub fn times(&self) -> Times<'_> {
        Times { anchors: &self.anchors, at: 0, interval: None, n_uncertain: 0 }
    }
}

pub struct Times<'a> {
    anchors: &'a [Anchor],
    /// The last anchor that is not after the requested place.
    at: usize,
    interval: Option<u32>,
    /// Intervals without a reading: their times could be later, up to the times of the next interval.
    pub n_uncertain: u64,
}

impl Times<'_> {
    /// TSC at a place. None: the log has no reading at all.
    pub fn tsc(&mut self, place: Place) -> Option<u64> {
        let not_after = |a: &Anchor| {
            a.interval < place.interval || a.interval == place.interval && a.count <= place.count
        };
        while self.anchors.get(self.at + 1).is_some_and(not_after) {
            self.at += 1;
        }
        let mut anchor = self.anchors.get(self.at)?;
        if anchor.interval != place.interval {
            // Before the first reading of its interval: count back from that reading.
            match self.anchors.get(self.at + 1) {
                Some(next) if next.interval == place.interval => anchor = next,
                _ if self.interval != Some(place.interval) => self.n_uncertain += 1,
                _ => {}
            }
        }
        self.interval = Some(place.interval);
        Some(place.count.wrapping_add(anchor.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_dates_what_came_before_it_since_the_wake_up() {
        let mut clock = Clock { count: 10, ..Clock::default() };
        clock.reading(1010);
        let before = Place { interval: 0, count: 4 };
        clock.count = 20;
        let halted = clock.here();
        clock.wake(); // 500 ticks later
        clock.count = 25;
        let woken = clock.here();
        clock.count = 30;
        clock.reading(1530);
        let mut times = clock.times();
        assert_eq!(times.tsc(before), Some(1004));
        assert_eq!(times.tsc(halted), Some(1020));
        assert_eq!(times.tsc(woken), Some(1525));
        assert_eq!((times.n_uncertain, clock.max_disagreement), (0, 0));
    }

    #[test]
    fn readings_that_disagree_are_reported_and_take_over() {
        let mut clock = Clock::default();
        clock.reading(100);
        clock.count = 10;
        clock.reading(113);
        assert_eq!((clock.max_disagreement, clock.n_disagreements), (3, 1));
        let mut times = clock.times();
        assert_eq!(times.tsc(Place { interval: 0, count: 9 }), Some(109));
        assert_eq!(times.tsc(Place { interval: 0, count: 12 }), Some(115));
    }

    #[test]
    fn an_interval_without_a_reading_is_uncertain() {
        let mut clock = Clock::default();
        clock.reading(100);
        clock.wake();
        clock.count = 5;
        let place = clock.here();
        clock.wake();
        clock.count = 9;
        clock.reading(900);
        let mut times = clock.times();
        assert_eq!(times.tsc(place), Some(105)); // not before
        assert_eq!(times.n_uncertain, 1);
    }

    #[test]
    fn no_reading_no_time() {
        assert_eq!(Clock::default().times().tsc(Place { interval: 0, count: 1 }), None);
    }
}
