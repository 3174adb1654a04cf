// SPDX-License-Identifier: GPL-2.0-only
//! libipt images: the code of one process at one time, with symbols by address.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::kallsyms::KERNEL_BEGIN;
use super::machine::Code;
use super::object::Object;
use super::sections::{Piece, Sections};
use super::symbols::Found;
use crate::error::{Error, Result};
use crate::libipt;
use crate::perfdata::Map;

/// Images kept for each decoding thread; beyond this limit, all are made again.
const MAX_IMAGES: usize = 512;
/// Entries of the symbol cache: a power of 2. A fuzzer makes the cache again for each input.
const CACHED: usize = 1 << if cfg!(fuzzing) { 5 } else { 14 };

struct UserMap {
    map: Arc<Map>,
    object: Option<Arc<Object>>,
}

pub struct Image {
    pointer: *mut libipt::Image,
    maps: Vec<UserMap>,
    number: u32,
    /// The interval of time during which the kernel's symbols do not change.
    kernel: u32,
    /// The time for which it was made.
    time: u64,
    /// It is valid until then.
    pub until: u64,
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: decoders hold an Rc. Those that used this image were dropped or have another image now.
        unsafe { libipt::pt_image_free(self.pointer) };
    }
}

impl Image {
    pub fn pointer(&self) -> *mut libipt::Image {
        self.pointer
    }

    /// Name of the mapping at an address of user code.
    pub fn name(&self, address: u64) -> Option<&str> {
        self.map(address).map(|m| m.map.name.as_str())
    }

    fn map(&self, address: u64) -> Option<&UserMap> {
        let at = self.maps.partition_point(|m| m.map.begin <= address);
        self.maps[..at].last().filter(|m| address < m.map.end)
    }
}

#[derive(Clone, Copy)]
struct Cached {
    address: u64,
    /// The owner of the address: user code of an image, or the kernel in an interval of time.
    of: u32,
    found: Found,
}

/// The images of one decoding thread. libipt reorders the sections of an image while it reads them, so threads cannot
/// share an image.
pub struct Images<'a> {
    code: &'a Code,
    made: HashMap<(i32, usize, usize), Rc<Image>>,
    /// Declared after the images that use them, so that they are dropped later.
    pub sections: Rc<Sections>,
    n_made: u32,
    cache: Vec<Cached>,
}

impl<'a> Images<'a> {
    pub fn new(code: &'a Code) -> Result<Self> {
        let none = Cached { address: 0, of: u32::MAX, found: Found { id: 0, start: 0, end: 0 } };
        let sections = Rc::new(Sections::new()?);
        Ok(Self { code, made: HashMap::new(), sections, n_made: 0, cache: vec![none; CACHED] })
    }

    /// The code of a process at a time (ns).
    pub fn get(&mut self, pid: i32, time: u64) -> Result<Rc<Image>> {
        let (user, until_user) = self.code.tasks.epoch(pid, time);
        let (kernel, until_kernel) = self.code.kernel.epoch(time);
        if let Some(image) = self.made.get(&(pid, user, kernel)) {
            return Ok(image.clone());
        }
        if self.made.len() >= MAX_IMAGES {
            self.made.clear();
        }
        let mut image = self.make(pid, time)?;
        image.kernel = kernel as u32;
        image.until = until_user.min(until_kernel);
        let image = Rc::new(image);
        self.made.insert((pid, user, kernel), image.clone());
        Ok(image)
    }

    fn make(&mut self, pid: i32, time: u64) -> Result<Image> {
        // SAFETY: a name is optional.
        let pointer = unsafe { libipt::pt_image_alloc(std::ptr::null()) };
        if pointer.is_null() {
            return Err(Error::memory("libipt: no memory for an image"));
        }
        let number = self.n_made;
        self.n_made += 1;
        let mut image = Image { pointer, maps: Vec::new(), number, kernel: 0, time, until: 0 };
        let sections = &self.sections;
        let add = |piece: &Piece| {
            for id in sections.add(piece) {
                sections.add_to(pointer, id);
            }
        };
        self.code.kernel.pieces(time).for_each(add);
        for map in self.code.tasks.maps(pid, time) {
            if map.begin >= KERNEL_BEGIN {
                continue;
            }
            let object = self.code.object(&map);
            if let Some(object) = &object {
                let (path, size) = (object.path.clone(), object.held(map.offset, map.end - map.begin));
                add(&Piece { path, offset: map.offset, size, address: map.begin });
            }
            image.maps.push(UserMap { map, object });
        }
        image.maps.sort_by_key(|m| m.map.begin);
        Ok(image)
    }

    /// The function at an address. If there is none: number 0, for that address alone.
    pub fn symbol(&mut self, image: &Image, address: u64) -> Found {
        let slot = (address ^ address >> 14) as usize & (CACHED - 1);
        let of = if address >= KERNEL_BEGIN { image.kernel } else { image.number };
        let cached = &self.cache[slot];
        if cached.address == address && cached.of == of {
            return cached.found;
        }
        let found = self.look_up(image, address).unwrap_or(Found { id: 0, start: address, end: address });
        self.cache[slot] = Cached { address, of, found };
        found
    }

    fn look_up(&self, image: &Image, address: u64) -> Option<Found> {
        let interner = &self.code.interner;
        if address >= KERNEL_BEGIN {
            return self.code.kernel.find(address, image.time, interner);
        }
        let UserMap { map, object } = image.map(address)?;
        // Even without a symbol, its object is known.
        let nameless =
            || Found { id: interner.id("", &map.name.as_str().into()), start: address, end: address };
        let Some(object) = object else { return Some(nameless()) };
        let Some(in_object) = object.address(map.offset.wrapping_add(address - map.begin)) else {
            return Some(nameless());
        };
        let Some(found) = object.symbols().find(in_object, interner) else { return Some(nameless()) };
        let moved = |a: u64| address.wrapping_add(a.wrapping_sub(in_object));
        Some(Found { id: found.id, start: moved(found.start), end: moved(found.end) })
    }
}
