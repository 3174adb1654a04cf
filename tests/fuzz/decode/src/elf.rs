// SPDX-License-Identifier: GPL-2.0-only
//! A small ELF file: one code segment with its symbols.

const CODE_AT: u64 = 0x1000;

/// A program with `code` at `address`; `symbols`: names, and their offsets in the code.
pub fn program(address: u64, code: &[u8], symbols: &[(&str, u64)]) -> Vec<u8> {
    let (mut table, mut names) = (vec![0; 24], vec![0]);
    for (index, (name, at)) in symbols.iter().enumerate() {
        let end = symbols.get(index + 1).map_or(code.len() as u64, |next| next.1);
        table.extend((names.len() as u32).to_le_bytes());
        table.extend([0x12, 0, 1, 0]); // a global function of section 1
        table.extend((address + at).to_le_bytes());
        table.extend((end - at).to_le_bytes());
        names.extend(name.bytes().chain([0]));
    }
    let table_at = CODE_AT + code.len() as u64;
    let names_at = table_at + table.len() as u64;
    let headers_at = names_at + names.len() as u64;
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    [address, 64, headers_at].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend([0; 4]);
    [64, 56, 1, 64, 4, 3_u16].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    let size = code.len() as u64;
    [CODE_AT, address, address, size, size, 4096].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.resize(CODE_AT as usize, 0);
    bytes.extend_from_slice(code);
    bytes.extend(&table);
    bytes.extend(&names);
    bytes.extend(header(0, 0, 0, 0, 0));
    bytes.extend(header(1, address, CODE_AT, size, 0));
    bytes.extend(header(2, 0, table_at, table.len() as u64, 24));
    bytes.extend(header(3, 0, names_at, names.len() as u64, 0));
    bytes
}

/// A section header; that of symbols (2) has its names in section 3.
fn header(kind: u32, address: u64, at: u64, size: u64, entry: u64) -> Vec<u8> {
    let mut bytes = [0, kind].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    [0, address, at, size].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    let link: u32 = if kind == 2 { 3 } else { 0 };
    [link, 1].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    [1, entry].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes
}
