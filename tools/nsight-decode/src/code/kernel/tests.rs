// SPDX-License-Identifier: GPL-2.0-only
use super::*;

#[test]
fn code_is_as_it_was_at_each_time_whenever_it_was_copied() {
    let page = 0xffff_ffff_8100_0000;
    let poke = |time, at, old: &[u8], new: &[u8]| Poke {
        time,
        address: page + at,
        old: old.to_vec(),
        new: new.to_vec(),
    };
    let pokes =
        [poke(10, 4, &[1, 1], &[2, 2]), poke(20, 4, &[2, 2], &[3, 3]), poke(30, 4095, &[7, 8], &[9, 6])];
    // copied after the first change
    let copy = |_, bytes: &mut [u8]| {
        bytes.fill(0x90);
        bytes[4..6].copy_from_slice(&[2, 2]);
        true
    };
    let late = pages(&pokes, 10, copy);
    assert_eq!(late[&page].iter().map(|(t, p)| (*t, p[4])).collect::<Vec<_>>(), [(0, 2), (20, 3), (30, 3)]);
    let pages = pages(&pokes, 0, copy);
    let first = &pages[&page];
    assert_eq!(first.iter().map(|(t, _)| *t).collect::<Vec<_>>(), [0, 10, 20, 30]);
    assert_eq!(first.iter().map(|(_, p)| p[4]).collect::<Vec<_>>(), [1, 2, 3, 3]);
    assert_eq!((first[0].1[4095], first[3].1[4095], first[0].1[6]), (7, 9, 0x90));
    let second = &pages[&(page + PAGE)];
    assert_eq!((second[0].1[0], second[1].1[0]), (8, 6));
}

#[test]
fn symbols_end_when_they_are_unregistered_or_replaced() {
    let k = |time, address, unregister, name: &str| Ksymbol {
        time,
        address: KERNEL_BEGIN + address,
        size: 8,
        unregister,
        name: name.into(),
    };
    let all =
        lifetimes(&[k(1, 0, false, "a"), k(2, 16, false, "b"), k(5, 0, true, "a"), k(7, 16, false, "c")]);
    let times: Vec<_> = all.iter().map(|(k, to, _)| (k.time, *to)).collect();
    assert_eq!(times, [(1, 5), (2, 7), (7, u64::MAX)]);
}

#[test]
fn a_symbol_may_end_where_memory_ends() {
    let k = Ksymbol {
        time: 1,
        address: 0_u64.wrapping_sub(PAGE),
        size: 4096,
        unregister: false,
        name: "bpf".into(),
    };
    let kernel = Kernel { ksymbols: lifetimes(std::slice::from_ref(&k)), ..Kernel::default() };
    let found = kernel.find(k.address + 1, 1, &Interner::default()).unwrap();
    assert_eq!((found.start, found.end), (k.address, u64::MAX));
}

#[test]
fn a_segment_behind_the_end_of_any_file_is_none() {
    let directory = crate::scratch::Directory::new();
    let path = directory.path().join("kcore");
    let mut bytes = vec![0; 64 + 56];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[32] = 64;
    (bytes[54], bytes[56]) = (56, 1);
    bytes[64] = 1;
    for (at, word) in [(8, u64::MAX - 0xfff), (16, CODE_BEGIN), (32, 2 * PAGE)] {
        bytes[64 + at..64 + at + 8].copy_from_slice(&word.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    assert!(segments(&files::open(&path).unwrap(), 0).is_err());
}

#[test]
fn segments_that_overlap_are_damage() {
    let found = |places: &[(u64, u64)]| {
        let directory = crate::scratch::Directory::new();
        let path = directory.path().join("kcore");
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&(places.len() as u16).to_le_bytes());
        for (address, size) in places {
            let mut entry = [0; 56];
            entry[0] = 1;
            entry[16..24].copy_from_slice(&(CODE_BEGIN + address).to_le_bytes());
            entry[32..40].copy_from_slice(&size.to_le_bytes());
            bytes.extend(entry);
        }
        std::fs::write(&path, bytes).unwrap();
        let segments = segments(&files::open(&path).unwrap(), 0);
        segments.map(|found| found.iter().map(|s| s.address - CODE_BEGIN).collect::<Vec<_>>())
    };
    assert_eq!(found(&[(0x3000, 0x1000), (0, 0x1000), (0x1000, 0x2000)]).unwrap(), [0, 0x1000, 0x3000]);
    for two in [[(0, 0x1001), (0x1000, 1)], [(0x1000, 1), (0, 0x2000)], [(0, 8), (0, 8)]] {
        assert!(found(&two).unwrap_err().to_string().contains("overlap"), "{two:?}");
    }
}
