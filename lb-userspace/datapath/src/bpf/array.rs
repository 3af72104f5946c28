//! Array maps as memory, read and written without a system call; and memory that is used like an
//! array map.

use std::{
    io,
    marker::PhantomData,
    ops::Range,
    os::fd::{AsFd, AsRawFd},
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use aya::{
    Pod,
    maps::{MapData, MapError, MapType},
};
use aya_obj::generated::BPF_F_MMAPABLE;
use thiserror::Error;

use super::page_size;

/// The elements of an array map with `BPF_F_MMAPABLE`, shared with the kernel.
///
/// Elements are copied in words of eight bytes. A reader never sees half a word, but may see some
/// words from before a change and some from after it. What must change together must be in one
/// word, or be published by writing one word: [`Self::u32_at`] and [`Self::u64_at`].
#[derive(Debug)]
pub struct MappedArray<T> {
    words: NonNull<AtomicU64>,
    /// Length of the mapping in bytes; a multiple of the page size.
    length: usize,
    len: u32,
    element: PhantomData<T>,
}

/// Why an array cannot be mapped.
#[derive(Debug, Error)]
pub enum ArrayError {
    #[error(
        "map {name} is not an array that can be mapped into memory (type {found}, flags {flags:#x})"
    )]
    NotMappable {
        name: String,
        found: String,
        flags: u32,
    },
    #[error("map {name} has elements of {found} bytes, {expected} were expected")]
    ElementSize {
        name: String,
        found: u32,
        expected: usize,
    },
    #[error("cannot map {name} into memory: {source}")]
    Mmap { name: String, source: io::Error },
    #[error(transparent)]
    Map(#[from] MapError),
}

impl<T: Pod> MappedArray<T> {
    /// Eight-byte words per element.
    const WORDS: usize = {
        assert!(size_of::<T>() > 0 && size_of::<T>().is_multiple_of(8));
        size_of::<T>() / 8
    };

    /// Maps the elements of `map` into memory. Its descriptor is not needed afterwards.
    ///
    /// # Errors
    ///
    /// If the map is not a mappable array with elements of `T`'s size, or the kernel refuses the
    /// memory.
    pub fn new(map: &MapData) -> Result<Self, ArrayError> {
        let info = map.info()?;
        let name = info.name_as_str().unwrap_or("(unnamed)").to_owned();
        let map_type = info.map_type()?;
        if map_type != MapType::Array || info.map_flags() & BPF_F_MMAPABLE == 0 {
            return Err(ArrayError::NotMappable {
                name,
                found: format!("{map_type:?}"),
                flags: info.map_flags(),
            });
        }
        if info.value_size() as usize != size_of::<T>() {
            return Err(ArrayError::ElementSize {
                name,
                found: info.value_size(),
                expected: size_of::<T>(),
            });
        }

        let len = info.max_entries();
        let length = (len as usize * Self::WORDS * 8).next_multiple_of(page_size());
        let words = mmap(Some(map), length).map_err(|source| ArrayError::Mmap { name, source })?;
        Ok(Self {
            words,
            length,
            len,
            element: PhantomData,
        })
    }

    /// An array of this process alone, filled with zeros. It takes memory only where it is written.
    ///
    /// # Panics
    ///
    /// If the system refuses the memory.
    pub fn in_memory(len: u32) -> Self {
        let length = (len as usize * Self::WORDS * 8).next_multiple_of(page_size());
        let words = mmap(None, length).expect("memory for an array");
        Self {
            words,
            length,
            len,
            element: PhantomData,
        }
    }

    /// Maps the elements of a pinned map.
    ///
    /// # Errors
    ///
    /// As [`Self::new`], and if nothing is pinned there.
    pub fn from_pin(path: &Path) -> Result<Self, ArrayError> {
        Self::new(&MapData::from_pin(path)?)
    }

    /// Number of elements.
    #[expect(
        clippy::len_without_is_empty,
        reason = "the kernel makes no empty maps"
    )]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// A copy of an element.
    ///
    /// # Panics
    ///
    /// If `index` is out of bounds. This holds for all methods with an index.
    pub fn read(&self, index: u32) -> T {
        let words = self.words(index);
        let mut value = std::mem::MaybeUninit::<T>::uninit();
        let target = value.as_mut_ptr().cast::<u64>();
        for (position, word) in words.iter().enumerate() {
            // SAFETY: `value` has room for `WORDS` words; `T` may be aligned to less than eight.
            unsafe {
                target
                    .add(position)
                    .write_unaligned(word.load(Ordering::Relaxed));
            }
        }
        // SAFETY: all bytes are written, and every bit pattern is a valid `Pod`.
        unsafe { value.assume_init() }
    }

    /// Overwrites an element. Its first word comes last, so that a value published there becomes
    /// visible after the rest.
    pub fn write(&self, index: u32, value: &T) {
        let source = std::ptr::from_ref(value).cast::<u64>();
        for (position, word) in self.words(index).iter().enumerate().rev() {
            // SAFETY: `value` has `WORDS` words; `T` may be aligned to less than eight.
            let part = unsafe { source.add(position).read_unaligned() };
            word.store(part, Ordering::Release);
        }
    }

    /// Overwrites the elements from `first` on.
    pub fn write_all(&self, first: u32, values: &[T]) {
        for (index, value) in (first..).zip(values) {
            self.write(index, value);
        }
    }

    /// Copies of the elements in `range`, as far as they exist, with their indices.
    pub fn iter(&self, range: Range<u32>) -> impl Iterator<Item = (u32, T)> + '_ {
        (range.start..range.end.min(self.len)).map(|index| (index, self.read(index)))
    }

    /// Four bytes of an element, `offset` bytes from its start (see [`std::mem::offset_of`]).
    ///
    /// # Panics
    ///
    /// If `offset` is not a multiple of four inside the element.
    pub fn u32_at(&self, index: u32, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= size_of::<T>());
        let element = self.words(index).as_ptr();
        // SAFETY: inside the element and aligned, both just checked; atomics allow for the kernel's
        // writes.
        unsafe { &*element.byte_add(offset).cast::<AtomicU32>() }
    }

    /// Eight bytes of an element, `offset` bytes from its start.
    ///
    /// # Panics
    ///
    /// If `offset` is not a multiple of eight inside the element.
    pub fn u64_at(&self, index: u32, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        &self.words(index)[offset / 8]
    }

    /// Where an element is, for code that reads and changes it in place as programs do; `None` past
    /// the end.
    pub fn pointer(&self, index: u32) -> Option<NonNull<T>> {
        (index < self.len).then(|| {
            // SAFETY: inside the mapping, which was just checked.
            unsafe { self.words.add(index as usize * Self::WORDS) }.cast()
        })
    }

    fn words(&self, index: u32) -> &[AtomicU64] {
        assert!(
            index < self.len,
            "element {index} of an array of {}",
            self.len
        );
        // SAFETY: inside the mapping, which lives as long as `self`; the kernel writes to it too,
        // which atomics allow.
        unsafe {
            let element = self.words.add(index as usize * Self::WORDS);
            std::slice::from_raw_parts(element.as_ptr(), Self::WORDS)
        }
    }
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only reached through atomics.
unsafe impl<T: Pod> Send for MappedArray<T> {}
// SAFETY: the mapping is only reached through atomics.
unsafe impl<T: Pod> Sync for MappedArray<T> {}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `mmap` below and nothing borrows from it any more.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.length) };
    }
}

/// Maps the memory of a map, or without one, new memory of this process.
fn mmap(map: Option<&MapData>, length: usize) -> io::Result<NonNull<AtomicU64>> {
    let (flags, fd) = match map {
        Some(map) => (libc::MAP_SHARED, map.fd().as_fd().as_raw_fd()),
        None => (
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
        ),
    };
    // SAFETY: a new mapping at an address of the kernel's choice cannot overlay anything.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(address.cast()).expect("mmap maps nothing at address zero unless told to"))
}
