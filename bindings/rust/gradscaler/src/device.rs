// SPDX-License-Identifier: MIT
//! Memory of a device, and a scaler that lives there.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::{size_of, size_of_val, ManuallyDrop};
use std::ptr;
use std::slice;
use std::sync::Arc;

use crate::error::{check, Error, Result};
use crate::factor::{same_length, ListCall};
use crate::macros::Raw;
use crate::tensor::raw;
use crate::threads::Context;
use crate::{sys, Element, Factor, Histogram, Policy, Report, Scaler, State, Status, Want};

/// A device and one of its streams: where buffers are, and what computes.
///
/// Clones share the device, which stays open as long as one of them, or what was made of them,
/// lives. Opening a CUDA device loads the kernels: do it once, not for every call.
///
/// ```no_run
/// use gradscaler::{Device, DeviceBuffer, Scaler, Want};
///
/// let device = Device::cuda(0)?;
/// let mut scaler = Scaler::preset("recommended")?.to_device(&device)?;
/// let mut grad = DeviceBuffer::from_slice(&device, &[65536f32; 1000])?;
///
/// // These only enqueue: the report and the state stay on the device.
/// scaler.unscale(&mut [grad.tensor_mut()], Want::NORM)?;
/// scaler.update()?;
///
/// // These wait.
/// println!("{:?} {:?}", scaler.report()?, scaler.state()?);
/// assert_eq!(grad.to_vec()?[0], 1.0);
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Device {
    context: Arc<Context>,
    stream: *mut c_void,
}

// SAFETY: contexts and streams take calls from any thread; the pointer is only handed on.
unsafe impl Send for Device {}
// SAFETY: likewise.
unsafe impl Sync for Device {}

impl Device {
    /// CUDA device `device`, with its legacy default stream. Needs a driver, and no toolkit.
    ///
    /// # Errors
    ///
    /// [`Status::UNAVAILABLE`]: there is no driver or no such device, and the error says why.
    pub fn cuda(device: i32) -> Result<Self> {
        Context::cuda(device).map(Self::of)
    }

    /// This computer's memory and that many threads: the same program where there is no GPU.
    ///
    /// # Errors
    ///
    /// As [`Threads::new`](crate::Threads::new).
    pub fn cpu(threads: u32) -> Result<Self> {
        Context::cpu(threads).map(Self::of)
    }

    fn of(context: Context) -> Self {
        Self {
            context: Arc::new(context),
            stream: ptr::null_mut(),
        }
    }

    /// The same device with another stream: a `CUstream`, such as `CudaStream::cu_stream` of
    /// cudarc. What is made of the result works on that stream.
    ///
    /// While it is captured in a graph, calls that only enqueue are captured. Make each of them once
    /// before: the first one of a list may allocate.
    ///
    /// # Safety
    ///
    /// The stream is of this device and outlives what is made of the result. Where memory is used
    /// on several streams, dropped included, the caller makes them wait for each other. What a graph
    /// uses outlives it.
    pub unsafe fn with_stream(&self, stream: *mut c_void) -> Self {
        Self {
            context: self.context.clone(),
            stream,
        }
    }

    /// Waits until all that was enqueued on the stream is done.
    ///
    /// # Errors
    ///
    /// [`Status::UNAVAILABLE`]: the stream is being captured; [`Status::DEVICE`]: the driver failed.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: a context and its stream.
        check(|err| unsafe { sys::gsc_exec_wait(&self.exec(None), err) })
    }

    /// What tells devices apart.
    fn id(&self) -> usize {
        Arc::as_ptr(&self.context) as usize
    }

    fn exec(&self, workspace: Option<&Block>) -> sys::gsc_exec {
        sys::gsc_exec {
            context: self.context.as_ptr(),
            stream: self.stream,
            workspace: workspace.map_or(ptr::null_mut(), |block| block.data),
            workspace_size: workspace.map_or(0, |block| block.size as u64),
            ..sys::GSC_EXEC_INIT
        }
    }

    /// Copies by way of host memory of its own, as a copy that cannot be waited for may go on: that memory
    /// is then not freed. A stream that is being captured is refused before anything is enqueued.
    fn copy(&self, staged: Vec<u8>, to: *mut c_void, from: *const c_void) -> Result<Vec<u8>> {
        let staged = ManuallyDrop::new(staged);
        self.wait()?;
        let (exec, size) = (self.exec(None), staged.len() as u64);
        // SAFETY: one is the staged memory, of which the other has as many bytes.
        check(|err| unsafe { sys::gsc_memory_copy(&exec, to, from, size, err) })?;
        self.wait()?;
        Ok(ManuallyDrop::into_inner(staged))
    }

    fn write(&self, to: *mut c_void, bytes: &[u8]) -> Result<()> {
        let staged = bytes.to_vec();
        let from = staged.as_ptr().cast();
        self.copy(staged, to, from).map(drop)
    }

    fn read(&self, bytes: &mut [u8], from: *const c_void) -> Result<()> {
        let mut staged = vec![0; bytes.len()];
        let to = staged.as_mut_ptr().cast();
        bytes.copy_from_slice(&self.copy(staged, to, from)?);
        Ok(())
    }
}

/// Memory of a device.
#[derive(Debug)]
struct Block {
    device: Device,
    data: *mut c_void,
    size: usize,
}

// SAFETY: it owns its memory, which is only reached through calls.
unsafe impl Send for Block {}
// SAFETY: likewise.
unsafe impl Sync for Block {}

impl Block {
    fn new(device: &Device, size: usize) -> Result<Self> {
        let mut data = ptr::null_mut();
        // SAFETY: a context, and a pointer to write.
        check(|err| unsafe {
            let (context, kind) = (device.context.as_ptr(), sys::GSC_MEMORY_DEVICE);
            sys::gsc_memory_create(context, kind, size as u64, &mut data, err)
        })?;
        Ok(Self {
            device: device.clone(),
            data,
            size,
        })
    }

    fn of<T: Copy>(device: &Device, values: &[T]) -> Result<Self> {
        let mut block = Self::new(device, size_of_val(values))?;
        block.write(values)?;
        Ok(block)
    }

    fn write<T: Copy>(&mut self, values: &[T]) -> Result<()> {
        debug_assert!(size_of_val(values) <= self.size);
        // SAFETY: values without padding.
        let bytes = unsafe { slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        self.device.write(self.data, bytes)
    }

    /// Every bit pattern is a value of T, which the callers see to.
    fn read<T: Copy>(&self, values: &mut [T]) -> Result<()> {
        debug_assert!(size_of_val(values) <= self.size);
        let (start, size) = (values.as_mut_ptr().cast(), size_of_val(values));
        // SAFETY: values without padding, for which every bit pattern is one.
        let bytes = unsafe { slice::from_raw_parts_mut(start, size) };
        self.device.read(bytes, self.data)
    }

    /// The value that starts the memory, over one that is let go.
    fn value<T: Copy>(&self, mut value: T) -> Result<T> {
        self.read(slice::from_mut(&mut value))?;
        Ok(value)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // What is enqueued may use the memory. If that cannot be waited for, it is not freed.
        if self.device.wait().is_ok() {
            // SAFETY: made by this context, and in use no more.
            unsafe { sys::gsc_memory_destroy(self.device.context.as_ptr(), self.data) }
        }
    }
}

/// A struct in the memory of a [`Device`], for kernels; while it is borrowed, no call changes it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRef<'a, T> {
    data: *const T,
    of: PhantomData<&'a T>,
}

impl<'a, T> DeviceRef<'a, T> {
    fn of(block: &'a Block) -> Self {
        Self {
            data: block.data.cast(),
            of: PhantomData,
        }
    }

    /// The address on the device, of the bytes that the C interface lays down.
    pub fn as_ptr(&self) -> *const T {
        self.data
    }
}

/// Elements in the memory of a [`Device`]. Dropping it waits for the stream; where the driver fails,
/// copies answer [`Status::DEVICE`].
#[derive(Debug)]
pub struct DeviceBuffer<T: Element> {
    block: Block,
    count: usize,
    elements: PhantomData<T>,
}

impl<T: Element> DeviceBuffer<T> {
    /// A copy of a slice.
    ///
    /// # Errors
    ///
    /// [`Status::MEMORY`]: the device has not so much; [`Status::DEVICE`]: the driver failed.
    pub fn from_slice(device: &Device, slice: &[T]) -> Result<Self> {
        Ok(Self {
            block: Block::of(device, slice)?,
            count: slice.len(),
            elements: PhantomData,
        })
    }

    /// That many zeros.
    ///
    /// # Errors
    ///
    /// As [`from_slice`](Self::from_slice).
    pub fn zeros(device: &Device, count: usize) -> Result<Self> {
        let size = count.checked_mul(size_of::<T>()).ok_or_else(|| {
            let message = format!("is {count}, which no memory holds");
            Error::new(Status::MEMORY, "count", message)
        })?;
        let block = Block::new(device, size)?;
        let zeros = vec![0u8; size.min(1 << 26)];
        for at in (0..size).step_by(1 << 26) {
            let to = block.data.cast::<u8>().wrapping_add(at).cast();
            device.write(to, &zeros[..zeros.len().min(size - at)])?;
        }
        Ok(Self {
            block,
            count,
            elements: PhantomData,
        })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no element, which is legal.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Waits, and copies all elements from a slice of this length.
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: another length.
    pub fn copy_from_slice(&mut self, slice: &[T]) -> Result<()> {
        self.same_length(slice)?;
        self.block.write(slice)
    }

    /// Waits, and copies all elements to a slice of this length.
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: another length.
    pub fn copy_to_slice(&self, slice: &mut [T]) -> Result<()> {
        self.same_length(slice)?;
        self.block.read(slice)
    }

    fn same_length(&self, slice: &[T]) -> Result<()> {
        if slice.len() == self.count {
            return Ok(());
        }
        let message = format!("has {} elements, the buffer {}", slice.len(), self.count);
        Err(Error::new(Status::COUNT, "slice", message))
    }

    /// Waits, and copies all elements.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        // SAFETY: an element is a number or two, and zero bits are 0.
        let mut elements = vec![unsafe { std::mem::zeroed::<T>() }; self.count];
        self.copy_to_slice(&mut elements)?;
        Ok(elements)
    }

    /// An entry of a list that is read.
    pub fn tensor(&self) -> DeviceTensor<'_> {
        // SAFETY: memory of the device, borrowed as long as the result.
        unsafe { DeviceTensor::from_raw::<T>(&self.block.device, self.block.data, self.count) }
    }

    /// An entry of a list that is written, or changed in place.
    pub fn tensor_mut(&mut self) -> DeviceTensorMut<'_> {
        // SAFETY: likewise, and mutably.
        unsafe { DeviceTensorMut::from_raw::<T>(&self.block.device, self.block.data, self.count) }
    }

    /// Where the elements are, in the device's memory.
    pub fn as_ptr(&self) -> *const c_void {
        self.block.data
    }
}

/// An entry of a list as C takes it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct Entry(sys::gsc_tensor);

// SAFETY: the pointer is only handed on, in calls that any thread may make.
unsafe impl Send for Entry {}
// SAFETY: likewise.
unsafe impl Sync for Entry {}

/// Elements on a device that a call reads, of any dtype.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTensor<'a> {
    entry: Entry,
    context: usize,
    memory: PhantomData<&'a [u8]>,
}

/// Elements on a device that a call writes, or changes in place, of any dtype.
#[derive(Debug)]
pub struct DeviceTensorMut<'a>(DeviceTensor<'a>, PhantomData<&'a mut [u8]>);

impl DeviceTensor<'_> {
    /// Memory that something else owns, such as a `CudaSlice` of cudarc.
    ///
    /// # Safety
    ///
    /// The device can read `count` elements there until the work that is enqueued is done, and
    /// nothing writes them meanwhile.
    pub unsafe fn from_raw<T: Element>(device: &Device, data: *const c_void, count: usize) -> Self {
        Self {
            entry: Entry(raw(data as *mut _, count, T::DTYPE)),
            context: device.id(),
            memory: PhantomData,
        }
    }
}

impl DeviceTensorMut<'_> {
    /// Memory that something else owns, such as a `CudaSlice` of cudarc.
    ///
    /// # Safety
    ///
    /// The device can read and write `count` elements there until the work that is enqueued is
    /// done, and nothing else uses them meanwhile.
    pub unsafe fn from_raw<T: Element>(device: &Device, data: *mut c_void, count: usize) -> Self {
        // SAFETY: as the caller promises, and more.
        let tensor = unsafe { DeviceTensor::from_raw::<T>(device, data, count) };
        Self(tensor, PhantomData)
    }
}

/// What a call of a [`DeviceScaler`] does beside its work; a [`Want`] is the short form.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct DeviceOptions {
    want: Want,
    clamp: f64,
    per_tensor: bool,
    histogram: bool,
}

impl DeviceOptions {
    /// A report with these, and nothing else.
    pub fn new(want: Want) -> Self {
        want.into()
    }

    /// Clamps the results; see [`Options::clamp`](crate::Options::clamp).
    pub fn clamp(mut self, limit: f64) -> Self {
        self.clamp = limit;
        self
    }

    /// Makes a report of every tensor, which [`DeviceScaler::per_tensor`] reads.
    pub fn per_tensor(mut self) -> Self {
        self.per_tensor = true;
        self
    }

    /// Makes a histogram, which [`DeviceScaler::histogram`] reads.
    pub fn histogram(mut self) -> Self {
        self.histogram = true;
        self
    }
}

impl From<Want> for DeviceOptions {
    fn from(want: Want) -> Self {
        Self {
            want,
            ..Self::default()
        }
    }
}

/// A scaler whose state and newest report are in the memory of a device; made by
/// [`Scaler::to_device`].
///
/// Its calls only enqueue, except those that read a result, which wait. Where the driver fails, all
/// answer [`Status::DEVICE`]; those on tensors have the errors of [`scale`](Self::scale) and
/// [`scale_into`](Self::scale_into). What the device finds wrong is told by [`Report::status`] and
/// [`State::status`], and skips the step.
#[derive(Debug)]
pub struct DeviceScaler {
    device: Device,
    policy: Policy,
    state: Block,
    report: Block,
    before: Block,
    clipped: Block,
    histogram: Block,
    per_tensor: Block,
    workspace: Block,
    tensors: usize,
    lists: [Vec<Entry>; 2],
}

impl Scaler {
    /// A copy of this scaler in the memory of a device.
    ///
    /// # Errors
    ///
    /// [`Status::MEMORY`], [`Status::DEVICE`].
    pub fn to_device(&self, device: &Device) -> Result<DeviceScaler> {
        Ok(DeviceScaler {
            device: device.clone(),
            policy: *self.policy(),
            state: Block::of(device, &[*self.state()])?,
            report: Block::of(device, &[Report::default()])?,
            before: Block::of(device, &[self.factor().0])?,
            clipped: Block::new(device, size_of::<sys::gsc_factor>())?,
            histogram: Block::of(device, &[Histogram::default()])?,
            per_tensor: Block::new(device, 0)?,
            workspace: Block::new(device, 0)?,
            tensors: 0,
            lists: Default::default(),
        })
    }
}

impl DeviceScaler {
    /// Waits, and copies the scaler to the host: to save it, for instance.
    pub fn to_host(&self) -> Result<Scaler> {
        Ok(Scaler::of(self.policy, self.state()?))
    }

    /// The rules.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Waits, and copies the scale and its counts.
    pub fn state(&self) -> Result<State> {
        self.state.value(State(sys::gsc_state::default()))
    }

    /// Waits, and copies the report of the newest call that made one.
    pub fn report(&self) -> Result<Report> {
        self.report.value(Report::default())
    }

    /// Waits, and copies the reports of the tensors of the newest call with
    /// [`DeviceOptions::per_tensor`].
    pub fn per_tensor(&self) -> Result<Vec<Report>> {
        let mut reports = vec![Report::default(); self.tensors];
        self.per_tensor.read(&mut reports)?;
        Ok(reports)
    }

    /// Waits, and copies the histogram of the newest call with [`DeviceOptions::histogram`].
    pub fn histogram(&self) -> Result<Histogram> {
        self.histogram.value(Histogram::default())
    }

    /// The report in the device's memory, where a fused optimizer reads `found_inf`.
    pub fn report_ptr(&self) -> DeviceRef<'_, Report> {
        DeviceRef::of(&self.report)
    }

    /// The state in the device's memory, where a kernel reads `factor.scale_f32` or
    /// `factor.inverse_f32`.
    pub fn state_ptr(&self) -> DeviceRef<'_, State> {
        DeviceRef::of(&self.state)
    }

    /// Multiplies by the scale, in place; see [`Factor::scale`](crate::Factor::scale).
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`]: a tensor is of another device, or a field of the options out of range;
    /// [`Status::MEMORY`]; [`Status::DEVICE`].
    pub fn scale(
        &mut self,
        tensors: &mut [DeviceTensorMut<'_>],
        options: impl Into<DeviceOptions>,
    ) -> Result<()> {
        self.in_place(
            sys::gsc_scale,
            self.factor(),
            tensors,
            options.into(),
            Verdict::None,
        )
    }

    /// Likewise into other memory, which may have other dtypes.
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: the lists or a pair of entries differ in length; otherwise as
    /// [`scale`](Self::scale).
    pub fn scale_into(
        &mut self,
        tensors: &[DeviceTensor<'_>],
        out: &mut [DeviceTensorMut<'_>],
        options: impl Into<DeviceOptions>,
    ) -> Result<()> {
        let options = options.into();
        self.elsewhere(
            sys::gsc_scale,
            self.factor(),
            tensors,
            out,
            options,
            Verdict::None,
        )
    }

    /// Divides gradients by the scale in place, and makes the report that
    /// [`update`](Self::update) takes; see [`Scaler::unscale`].
    pub fn unscale(
        &mut self,
        tensors: &mut [DeviceTensorMut<'_>],
        options: impl Into<DeviceOptions>,
    ) -> Result<()> {
        self.in_place(
            sys::gsc_unscale,
            self.factor(),
            tensors,
            options.into(),
            Verdict::OfPolicy,
        )
    }

    /// Likewise into other memory, which may have other dtypes.
    pub fn unscale_into(
        &mut self,
        tensors: &[DeviceTensor<'_>],
        out: &mut [DeviceTensorMut<'_>],
        options: impl Into<DeviceOptions>,
    ) -> Result<()> {
        let options = options.into();
        self.elsewhere(
            sys::gsc_unscale,
            self.factor(),
            tensors,
            out,
            options,
            Verdict::OfPolicy,
        )
    }

    /// [`unscale`](Self::unscale), with the gradients clipped to a global norm, as
    /// torch.nn.utils.clip_grad_norm_ does. The report is of the gradients before. Two passes.
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`]: `max_norm` is not finite and above 0; otherwise as [`scale`](Self::scale).
    pub fn unscale_clipped(
        &mut self,
        tensors: &mut [DeviceTensorMut<'_>],
        max_norm: f64,
        options: impl Into<DeviceOptions>,
    ) -> Result<()> {
        let mut options = options.into();
        options.want |= Want::NORM;
        self.fill(0, tensors.iter().map(|tensor| &tensor.0))?;
        let clamp = std::mem::take(&mut options.clamp);
        self.enqueue(None, self.factor(), options, Verdict::OfPolicy)?;
        let (exec, report) = (self.device.exec(None), self.report.data.cast());
        let (factor, clipped) = (self.factor(), self.clipped.data.cast());
        // SAFETY: the report is made before, on the same stream.
        check(|err| unsafe {
            sys::gsc_factor_clip_grad_norm(&exec, factor, report, max_norm, clipped, err)
        })?;
        let (call, options) = (
            (sys::gsc_unscale as _, 0),
            DeviceOptions::default().clamp(clamp),
        );
        self.enqueue(Some(call), clipped, options, Verdict::None)
    }

    /// Adds gradients of a micro-batch, divided by the scale, to `out` if all of them are finite;
    /// see [`Scaler::unscale_accumulate`].
    pub fn unscale_accumulate(
        &mut self,
        tensors: &[DeviceTensor<'_>],
        out: &mut [DeviceTensorMut<'_>],
        options: impl Into<DeviceOptions>,
    ) -> Result<()> {
        let options = options.into();
        self.elsewhere(
            sys::gsc_unscale_accumulate,
            self.factor(),
            tensors,
            out,
            options,
            Verdict::OfElements,
        )
    }

    /// Reports what [`unscale`](Self::unscale) would, and writes nothing else.
    pub fn measure(
        &mut self,
        tensors: &[DeviceTensor<'_>],
        options: impl Into<DeviceOptions>,
    ) -> Result<()> {
        self.fill(0, tensors)?;
        self.enqueue(None, self.factor(), options.into(), Verdict::OfPolicy)
    }

    /// Waits, and makes `report` the newest one, which [`update`](Self::update) takes: of a number that
    /// the host knows, such as the loss, or of ranks that were merged there.
    pub fn set_report(&mut self, report: &Report) -> Result<()> {
        self.report.write(&[*report])
    }

    /// Moves the scale by the newest report; see [`Scaler::update`]. What happened is in
    /// [`State::events`].
    ///
    /// A policy that guards knows outliers only here: [`measure`](Self::measure) first, then this,
    /// then [`unscale_guarded`](Self::unscale_guarded), and a step where
    /// [`State::skip_f32`], which is on the device, too, is 0.
    ///
    /// ```
    /// use gradscaler::{Device, DeviceBuffer, Guard, Policy, Report, Scaler, Want};
    ///
    /// let device = Device::cpu(1)?; // or Device::cuda(0)?
    /// let none = Policy::preset("none")?;
    /// let clips = Scaler::new(none.guard_norm(2.0).guard_flags(Guard::CLIP).build()?)?;
    /// let skips = Scaler::new(none.guard_norm(9.0).build()?)?;
    /// let (mut scaler, mut losses) = (clips.to_device(&device)?, skips.to_device(&device)?);
    /// let mut grad = DeviceBuffer::from_slice(&device, &[3f32, 4.0])?;
    ///
    /// scaler.measure(&[grad.tensor()], Want::NONE)?; // the norm is 5
    /// scaler.update()?;
    /// losses.set_report(&Report::number(0.7))?;
    /// losses.update()?;
    /// scaler.combine_decisions(&losses)?; // skips where one of them does
    /// scaler.unscale_guarded(&mut [grad.tensor_mut()], Want::NONE)?;
    /// assert_eq!((grad.to_vec()?, scaler.state()?.skip()), (vec![1.2, 1.6], false));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    pub fn update(&mut self) -> Result<()> {
        let (exec, policy, state) = (
            self.device.exec(None),
            &self.policy.0,
            self.state.data.cast(),
        );
        let (report, factor, before) = (self.report.data.cast(), self.state.data, self.before.data);
        // SAFETY: a state starts with its factor, and may be its own output; all is memory of the device.
        check(|err| unsafe {
            sys::gsc_memory_copy(&exec, before, factor, self.before.size as u64, err)
        })?;
        // SAFETY: likewise, and a report.
        check(|err| unsafe { sys::gsc_state_update(&exec, policy, state, report, state, err) })
    }

    /// Skips, clips or stops also where `other` did in its last update; see
    /// [`Scaler::combine_decisions`].
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`]: `other` is on another device.
    pub fn combine_decisions(&mut self, other: &Self) -> Result<()> {
        if other.device.id() != self.device.id() {
            let message = "is on another device than the scaler".into();
            return Err(Error::new(Status::VALUE, "other", message));
        }
        let (exec, state) = (self.device.exec(None), self.state.data.cast());
        // SAFETY: a state that may be its own output, and another, in memory of the device.
        check(|err| unsafe {
            sys::gsc_state_combine_decisions(&exec, state, other.state.data.cast(), state, err)
        })
    }

    /// The factor that unscales the gradients of the last update, and clips where that clips, in the
    /// device's memory: a fused optimizer reads `inverse_f32` there, with
    /// `skip_f32` of the state as its found_inf. See
    /// [`Factor::clip_outlier`](crate::Factor::clip_outlier).
    pub fn guard_factor(&mut self) -> Result<DeviceRef<'_, Factor>> {
        self.clip_outlier()?;
        Ok(DeviceRef::of(&self.clipped))
    }

    fn clip_outlier(&mut self) -> Result<*const sys::gsc_factor> {
        let (exec, factor) = (self.device.exec(None), self.before.data.cast());
        let (state, out) = (self.state.data.cast(), self.clipped.data.cast());
        // SAFETY: two factors and a state in memory of the device.
        check(|err| unsafe { sys::gsc_factor_clip_outlier(&exec, factor, state, out, err) })?;
        Ok(out)
    }

    /// Divides gradients that were [measured](Self::measure) by the scale before the last update,
    /// and clips them where it clips, in one pass. The report stays.
    pub fn unscale_guarded(
        &mut self,
        tensors: &mut [DeviceTensorMut<'_>],
        options: impl Into<DeviceOptions>,
    ) -> Result<()> {
        let factor = self.clip_outlier()?;
        self.in_place(
            sys::gsc_unscale,
            factor,
            tensors,
            options.into(),
            Verdict::None,
        )
    }

    /// Likewise into other memory, which may have other dtypes.
    pub fn unscale_guarded_into(
        &mut self,
        tensors: &[DeviceTensor<'_>],
        out: &mut [DeviceTensorMut<'_>],
        options: impl Into<DeviceOptions>,
    ) -> Result<()> {
        let (factor, options) = (self.clip_outlier()?, options.into());
        self.elsewhere(
            sys::gsc_unscale,
            factor,
            tensors,
            out,
            options,
            Verdict::None,
        )
    }

    /// Makes one of the lists; memory of another device is refused.
    fn fill<'a>(
        &mut self,
        list: usize,
        tensors: impl IntoIterator<Item = &'a DeviceTensor<'a>>,
    ) -> Result<()> {
        let (name, context) = (["tensors", "out"][list], self.device.id());
        let list = &mut self.lists[list];
        list.clear();
        for tensor in tensors {
            if tensor.context != context {
                let message = "is memory of another device than the scaler".into();
                let error = Error::new(Status::VALUE, name, message);
                return Err(error.in_list(list.len()));
            }
            list.push(tensor.entry);
        }
        Ok(())
    }

    fn in_place(
        &mut self,
        call: ListCall,
        factor: *const sys::gsc_factor,
        tensors: &[DeviceTensorMut<'_>],
        options: DeviceOptions,
        verdict: Verdict,
    ) -> Result<()> {
        self.fill(0, tensors.iter().map(|tensor| &tensor.0))?;
        self.enqueue(Some((call, 0)), factor, options, verdict)
    }

    fn elsewhere(
        &mut self,
        call: ListCall,
        factor: *const sys::gsc_factor,
        tensors: &[DeviceTensor<'_>],
        out: &[DeviceTensorMut<'_>],
        options: DeviceOptions,
        verdict: Verdict,
    ) -> Result<()> {
        same_length(tensors.len(), out.len())?;
        self.fill(0, tensors)?;
        self.fill(1, out.iter().map(|tensor| &tensor.0))?;
        self.enqueue(Some((call, 1)), factor, options, verdict)
    }

    /// A state starts with its factor.
    fn factor(&self) -> *const sys::gsc_factor {
        self.state.data.cast()
    }

    /// Makes a call on the lists, with memory for what it makes: one that writes, in place (0) or to
    /// the other list (1), or one that measures.
    fn enqueue(
        &mut self,
        writes: Option<(ListCall, usize)>,
        factor: *const sys::gsc_factor,
        options: DeviceOptions,
        verdict: Verdict,
    ) -> Result<()> {
        let n = self.lists[0].len();
        if options.per_tensor {
            self.tensors = 0;
            if self.per_tensor.size < n * Report::SIZE {
                self.per_tensor = Block::new(&self.device, n * Report::SIZE)?;
            }
        }
        let mut raw = sys::gsc_tensor_options {
            want: options.want.c(),
            clamp: options.clamp,
            ..sys::GSC_TENSOR_OPTIONS_INIT
        };
        if verdict == Verdict::OfPolicy {
            raw.policy = &self.policy.0;
        }
        if options.per_tensor {
            raw.per_tensor = self.per_tensor.data.cast();
        }
        if options.histogram {
            raw.histogram = self.histogram.data.cast();
        }
        let (exec, list, mut size) = (self.device.exec(None), self.lists[0].as_ptr().cast(), 0);
        // SAFETY: n entries, and options.
        check(|err| unsafe {
            sys::gsc_workspace_size(&exec, list, n as u64, &raw, &mut size, err)
        })?;
        if (self.workspace.size as u64) < size {
            self.workspace = Block::new(&self.device, size as usize)?;
        }
        let exec = self.device.exec(Some(&self.workspace));
        let report = match verdict {
            Verdict::None => ptr::null_mut(),
            _ => self.report.data.cast(),
        };
        // SAFETY: n entries each, whose memory is the device's as their makers promise, as is what
        // the options point to.
        check(|err| unsafe {
            match writes {
                Some((call, out)) => {
                    let out = self.lists[out].as_ptr().cast();
                    call(&exec, factor, list, out, n as u64, &raw, report, err)
                }
                None => sys::gsc_measure(&exec, factor, list, n as u64, &raw, report, err),
            }
        })?;
        if options.per_tensor {
            self.tensors = n;
        }
        Ok(())
    }
}

/// Whether a call makes the report that an update takes, and by what.
#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    None,
    OfElements,
    OfPolicy,
}
