// SPDX-License-Identifier: GPL-2.0-only
//! Joins slices to one sequence.
//!
//! A slice is decoded beyond its end, into the next one. If tracing continues over the PSB between them, both find the
//! same from the first packet after the PSB on. Before that packet, only the first slice knows how execution came
//! there: its last instructions before the PSB need no packet. So the first slice's items count up to that packet, and
//! the second one's after it. A mark counts in the slice that has its packet.

use super::item::{Item, What};
use super::switches::Task;
use super::walk::Output;
use crate::edges::Code;

/// How two slices were joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joint {
    Seamless,
    /// Decoding had failed in the first slice; the second one is a new start.
    Anew,
    /// The slices contradict each other.
    Contradiction,
}

/// Whether both slices find the item, whatever they knew before.
fn counts(item: &Item) -> bool {
    let beside = [Code::Stall, Code::StallAt, Code::Cbr, Code::Ptwrite, Code::Power].map(What::Event);
    !(item.what == What::Task || item.what == What::Entry || beside.contains(&item.what))
}

fn is_mark(item: &Item) -> bool {
    matches!(item.what, What::Event(Code::Ptwrite | Code::Power))
}

/// The number of items that the slice after `end` cannot find. (Marks wait for the time of the next branch.)
pub fn n_within(items: &[Item], end: usize) -> usize {
    items.iter().rposition(|i| i.offset <= end && !is_mark(i)).map_or(0, |at| at + 1)
}

/// A wait that began before `time`, that of the PSB between the slices, among the items after the end of the first slice: with its
/// address, and its end.
fn stall_over(items: &[Item], time: u64) -> Option<(Vec<Item>, u64)> {
    let at = items.iter().position(|i| i.what == What::Event(Code::Stall) && i.time < time)?;
    let stall = items[at..at + stall_length(&items[at..])].to_vec();
    let end = stall[0].time.saturating_add(stall[0].from & DURATION);
    Some((stall, end))
}

/// How many items report the stall that is the first one.
fn stall_length(items: &[Item]) -> usize {
    1 + usize::from(items.get(1).is_some_and(|i| i.what == What::Event(Code::StallAt)))
}

/// The duration in the value of a stall.
const DURATION: u64 = (1 << 56) - 1;

/// Joins `next` to `first`, which ends at `end` and may continue beyond it. Afterwards, `next` is the continuation of
/// `first`. `time`: that of the PSB between them.
pub fn join(first: &mut Output, end: usize, time: u64, next: &mut Output) -> Joint {
    if first.lost_at_end {
        return Joint::Anew;
    }
    let beyond = n_within(&first.items, end);
    let tail: Vec<usize> = (beyond..first.items.len()).filter(|&i| counts(&first.items[i])).collect();
    let head: Vec<usize> = (0..next.items.len()).filter(|&i| counts(&next.items[i])).collect();
    let first_branch = next.first_branch;
    let n_before = next.n_before.unwrap_or(next.items.len());
    let known_before = |at: usize| at < n_before;
    let same = |t: usize, h: usize| {
        let (at, t, h) = (h, &first.items[t], &next.items[h]);
        t.same(h) && (t.offset == h.offset || known_before(at))
    };
    let matches = |skip: usize| tail[skip..].iter().zip(&head).all(|(&t, &h)| same(t, h));
    let only_before = tail.iter().all(|&t| first.items[t].offset <= first_branch);
    let skip = (0..=tail.len()).find(|&skip| matches(skip)).unwrap_or(tail.len());
    if skip == tail.len() && !(tail.is_empty() || head.is_empty() || only_before) {
        truncate(&mut first.items, beyond, end);
        return Joint::Contradiction;
    }
    let before_branch = head.iter().take_while(|&&h| known_before(h)).count();
    // The part of the tail that comes before the first packet after the PSB.
    let kept = (skip + before_branch).min(tail.len());
    let used = kept - skip;
    // Items that do not count come from the slice that knows more: from the first one, as far as it was decoded.
    let (cut, begin) = match (tail.get(kept), used.checked_sub(1)) {
        (Some(&cut), _) => (cut, head.get(used).copied().unwrap_or(next.items.len())),
        (None, None) => (tail.last().map_or(beyond, |&last| last + 1), 0),
        (None, Some(last)) => (tail.last().map_or(beyond, |&last| last + 1), head[last] + 1),
    };
    let (before, after) = (first.task_at(cut), next.task_at(begin));
    // With an edge behind it, it is before the cut.
    let stall = if tail.is_empty() { stall_over(&first.items[beyond..], time) } else { None };
    // After an error, another entry follows; that one stays.
    let begins = |i: &Item| matches!(i.what, What::Entry | What::Event(Code::DecodeError));
    let entry =
        next.items.iter().position(begins).filter(|&at| at >= begin && next.items[at].what == What::Entry);
    truncate(&mut first.items, cut, end);
    if let Some(at) = entry {
        next.items.remove(at);
    }
    let mut at = 0;
    next.items.retain(|item| {
        at += 1;
        at > begin || is_mark(item)
    });
    if let Some((stall, ends)) = stall {
        first.items.extend(stall);
        // The next slice has the part of it after the PSB, at most.
        let part = next.items.iter().position(|i| i.what == What::Event(Code::Stall) && i.time < ends);
        if let Some(at) = part {
            next.items.drain(at..at + stall_length(&next.items[at..]));
        }
    }
    if before != after {
        match after.filter(|_| !next.unsure) {
            Some(Task { pid, tid }) => {
                let time = next.items.first().map_or(0, |i| i.time);
                let (from_sym, to_sym) = (pid as u32, tid as u32);
                let what = What::Task;
                let offset = first_branch;
                next.items.insert(0, Item { time, from: 0, to: 0, from_sym, to_sym, what, offset });
            }
            None => next.task = before,
        }
    }
    Joint::Seamless
}

/// Cuts items, but no marks of packets before `end`. Those of later packets are the next slice's.
fn truncate(items: &mut Vec<Item>, cut: usize, end: usize) {
    let mut at = 0;
    items.retain(|item| {
        at += 1;
        if is_mark(item) {
            item.offset <= end
        } else {
            at <= cut
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::Kind;

    fn edge(from: u64, offset: usize) -> Item {
        Item { time: from, from, to: from + 1, from_sym: 0, to_sym: 0, what: What::Edge(Kind::Call), offset }
    }

    fn entry(offset: usize) -> Item {
        Item { what: What::Entry, from: 0, ..edge(0, offset) }
    }

    fn output(items: &[Item], first_branch: usize) -> Output {
        let n_before = Some(items.iter().take_while(|i| i.offset <= first_branch).count());
        Output { items: items.to_vec(), first_branch, n_before, ..Output::default() }
    }

    fn joined(first: &mut Output, next: &mut Output) -> Vec<u64> {
        assert_eq!(join(first, 100, 45, next), Joint::Seamless);
        first.items.iter().chain(&next.items).map(|i| i.from).collect()
    }

    #[test]
    fn what_ran_up_to_the_first_packet_is_the_first_ones() {
        // PSB at 100, its first packet at 140: 3 and 4 need no packet, the second slice entered after 3
        let mut first =
            output(&[edge(1, 90), edge(2, 98), edge(3, 130), edge(4, 130), edge(5, 150), edge(6, 160)], 0);
        let mut next = output(&[entry(140), edge(4, 140), edge(5, 150), edge(6, 160), edge(7, 170)], 140);
        assert_eq!(joined(&mut first, &mut next), [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_loop_is_aligned_by_its_packets() {
        // the same call again and again: two of them before the first packet, then one per packet
        let mut first = output(&[edge(1, 90), edge(1, 130), edge(1, 150), edge(1, 160), edge(1, 170)], 0);
        let mut next = output(&[entry(140), edge(1, 150), edge(1, 160), edge(1, 170), edge(1, 180)], 140);
        assert_eq!(joined(&mut first, &mut next).len(), 6);
    }

    #[test]
    fn without_edges_beyond_the_psb_nothing_is_lost() {
        let mut first = output(&[edge(1, 90)], 0);
        let mut next = output(&[entry(140), edge(2, 900)], 140);
        assert_eq!(joined(&mut first, &mut next), [1, 2]);
    }

    #[test]
    fn a_stall_over_the_psb_is_known_to_the_first_only() {
        let stall = Item { what: What::Event(Code::Stall), ..edge(50, 150) };
        let mut first = output(&[edge(1, 90), stall, edge(5, 150), edge(6, 160)], 0);
        let mut next = output(&[entry(140), edge(5, 150), edge(6, 160), edge(7, 170)], 140);
        assert_eq!(joined(&mut first, &mut next), [1, 50, 5, 6, 7]);
    }

    #[test]
    fn a_stall_over_the_psb_needs_no_edge_behind_it() {
        // Of 100 ns from 40 on; the PSB's time is 45, so the second slice has the rest of it alone.
        let at = |code, time, from| Item { what: What::Event(code), time, ..edge(from, 150) };
        let stall = |time, ns: u64| [at(Code::Stall, time, 7 << 56 | ns), at(Code::StallAt, time, 9)];
        for known in [&stall(45, 95)[..], &[]] {
            let mut first = output(&[&[edge(1, 90)][..], &stall(40, 100), &stall(200, 9)].concat(), 0);
            let mut next = output(&[&[entry(140)], known, &stall(200, 9), &[edge(2, 900)]].concat(), 140);
            next.n_before = Some(1);
            let times = [1, 7 << 56 | 100, 9, 7 << 56 | 9, 9, 2];
            assert_eq!(joined(&mut first, &mut next), times);
        }
        // One that began after the PSB is the second slice's.
        let mut first = output(&[&[edge(1, 90)][..], &stall(50, 100)].concat(), 0);
        let mut next = output(&[&[entry(140)][..], &stall(50, 100)].concat(), 140);
        assert_eq!(joined(&mut first, &mut next), [1, 7 << 56 | 100, 9]);
    }

    #[test]
    fn contradictions_are_told() {
        let mut first = output(&[edge(1, 90), edge(8, 150), edge(9, 160)], 0);
        let mut next = output(&[entry(140), edge(2, 150), edge(3, 160)], 140);
        assert_eq!(join(&mut first, 100, 100, &mut next), Joint::Contradiction);
        assert_eq!(first.items.len(), 1);
    }

    #[test]
    fn after_an_error_the_next_slice_begins_anew() {
        let mut first = output(&[edge(1, 90)], 0);
        first.lost_at_end = true;
        let mut next = output(&[entry(140), edge(2, 900)], 140);
        assert_eq!(join(&mut first, 100, 100, &mut next), Joint::Anew);
        assert_eq!(next.items.len(), 2);
    }

    #[test]
    fn a_thread_that_the_first_slice_knew_better_stays() {
        let (one, two) = (Task { pid: 1, tid: 1 }, Task { pid: 2, tid: 2 });
        let switch = Item { what: What::Task, from_sym: 2, to_sym: 2, from: 0, ..edge(0, 95) };
        let mut first = output(&[edge(1, 90), switch, edge(3, 150)], 0);
        first.task = Some(one);
        let mut next = output(&[entry(140), edge(3, 150)], 140);
        (next.task, next.unsure) = (Some(one), true);
        assert_eq!(join(&mut first, 100, 100, &mut next), Joint::Seamless);
        assert_eq!(next.task, Some(two));
        assert!(next.items.iter().all(|i| i.what != What::Task));
    }
}
