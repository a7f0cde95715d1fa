// SPDX-License-Identifier: MIT
//! The memory of a device, and the methods that only scalers on a device have.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::{size_of, size_of_val, ManuallyDrop};
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{check, listed, Error, Result};
use crate::memory::{Arguments, Calls};
use crate::operations::{FactorIn, UNSCALE_ONLY};
use crate::tensor::sealed::Sealed;
use crate::threads::Context;
use crate::{
    sys, Element, Factor, Histogram, Memory, Options, Report, Scaler, State, Status, Tensor,
    TensorMut, Want,
};

/// A device and one of its streams.
///
/// Clones share the device. It stays open as long as one of them, or a buffer or scaler on it, lives.
/// Opening a CUDA device loads the kernels: do it once, not for every call.
///
/// ```no_run
/// use gradscaler::{Device, DeviceBuffer, Scaler, Want};
///
/// let device = Device::cuda(0)?;
/// let mut scaler = Scaler::preset("recommended")?.to_device(&device)?;
/// let mut grad = DeviceBuffer::from_slice(&device, &[65536f32; 1000])?;
///
/// // These only enqueue: the report and the state stay on the device.
/// let report = scaler.unscale(&mut [grad.tensor_mut()], Want::NORM)?;
/// scaler.update(&report)?;
///
/// // These wait.
/// println!("{:?} {:?}", report.value()?, scaler.state().value()?);
/// assert_eq!(grad.to_vec()?[0], 1.0);
/// # Ok::<(), gradscaler::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Device {
    context: Arc<Context>,
    stream: *mut c_void,
}

// SAFETY: contexts and streams take calls from any thread; this crate never follows the pointer.
unsafe impl Send for Device {}
// SAFETY: likewise.
unsafe impl Sync for Device {}

impl Device {
    /// Opens CUDA device `device`, with its legacy default stream. It needs a driver, but no toolkit.
    ///
    /// # Errors
    ///
    /// [`Status::UNAVAILABLE`]: there is no driver or no such device, and the error says why.
    pub fn cuda(device: i32) -> Result<Self> {
        Context::cuda(device).map(Self::of)
    }

    /// Makes a device of host memory and this number of threads, to run the same program without a GPU.
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

    /// Returns the same device with another stream: a `CUstream`, such as `CudaStream::cu_stream` of
    /// cudarc. Scalers and buffers on it use that stream.
    ///
    /// A graph captures calls that only enqueue. Make each of them once before the capture, because the
    /// first call on a list can allocate.
    ///
    /// # Safety
    ///
    /// The stream belongs to this device and outlives the scalers and buffers on it. If memory is used on
    /// several streams, which includes dropping it, the caller makes the streams wait for each other. The
    /// memory that a graph uses, including reports, outlives the graph.
    pub unsafe fn with_stream(&self, stream: *mut c_void) -> Self {
        Self {
            context: self.context.clone(),
            stream,
        }
    }

    /// Waits for all work that was enqueued on the stream.
    ///
    /// # Errors
    ///
    /// [`Status::UNAVAILABLE`]: the stream is being captured; [`Status::DEVICE`]: the driver failed.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: a context and its stream.
        check(|err| unsafe { sys::gsc_exec_wait(&self.exec(), err) })
    }

    /// Compares the device with the host, bit for bit, with everything that the kernels do. Returns the
    /// names of the comparisons. Three rounds are a good test; each has larger lists than the one before.
    ///
    /// ```
    /// let names = gradscaler::Device::cpu(2)?.compare(3)?;
    /// assert_eq!(names[0], "dtypes");
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Status::DEVICE`]: a bit differs, and the error says where, or the driver failed.
    pub fn compare(&self, rounds: u64) -> Result<Vec<&'static str>> {
        let names = listed(sys::gsc_comparison_name, sys::gsc_comparison_name);
        let names: Vec<_> = names.map(|(name, _)| name).collect();
        let mut size = 0;
        for (index, round) in (0..)
            .zip(&names)
            .flat_map(|(i, _)| (0..rounds).map(move |r| (i, r)))
        {
            // SAFETY: a context and its stream, and a number to write.
            check(|err| unsafe {
                sys::gsc_exec_compare(&self.exec(), index, round, &mut size, err)
            })?;
        }
        Ok(names)
    }

    /// Returns a number that identifies the device.
    fn id(&self) -> usize {
        Arc::as_ptr(&self.context) as usize
    }

    /// Returns the address of a buffer's only value. Refuses a buffer of another device.
    fn single_value<T: Plain, C>(&self, name: &str, buffer: &DeviceBuffer<T>) -> Result<*const C> {
        let message = if buffer.block.device.id() != self.id() {
            "is on another device than the scaler".into()
        } else if buffer.count != 1 {
            format!("has {} values: it must be one", buffer.count)
        } else {
            return Ok(buffer.block.data.cast());
        };
        Err(Error::new(Status::VALUE, name, message))
    }

    /// Returns a tensor for C. Refuses memory of another device.
    fn raw(&self, name: &str, tensor: &Tensor<'_, Self>) -> Result<sys::gsc_tensor> {
        if tensor.memory != self.id() {
            let message = "is memory of another device than the scaler".into();
            return Err(Error::new(Status::VALUE, name, message));
        }
        Ok(tensor.raw)
    }

    /// Returns a list for C. Refuses memory of another device.
    fn raw_list(&self, name: &str, tensors: &[Tensor<'_, Self>]) -> Result<Vec<sys::gsc_tensor>> {
        let raw = |(index, tensor)| self.raw(name, tensor).map_err(|error| error.in_list(index));
        tensors.iter().enumerate().map(raw).collect()
    }

    fn exec(&self) -> sys::gsc_exec {
        sys::gsc_exec {
            context: self.context.as_ptr(),
            stream: self.stream,
            ..sys::GSC_EXEC_INIT
        }
    }

    /// Copies by way of `staged` memory. If waiting fails, the copy can still run, so this memory is not
    /// freed. The first wait refuses a stream that is being captured, before anything is enqueued.
    fn copy(&self, staged: Vec<u8>, to: *mut c_void, from: *const c_void) -> Result<Vec<u8>> {
        let staged = ManuallyDrop::new(staged);
        self.wait()?;
        let (exec, size) = (self.exec(), staged.len() as u64);
        // SAFETY: `to` or `from` is the staged memory, and the other has as many bytes.
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

// SAFETY: it owns its memory, which only calls access.
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
}

impl Drop for Block {
    fn drop(&mut self) {
        // Enqueued work can use the memory: if waiting fails, it is not freed.
        if self.device.wait().is_ok() {
            // SAFETY: this context made the memory, and nothing uses it.
            unsafe { sys::gsc_memory_destroy(self.device.context.as_ptr(), self.data) }
        }
    }
}

/// A value that a [`DeviceBuffer`] can hold: an [`Element`], [`State`], [`Report`], [`Factor`] or
/// [`Histogram`]. The trait is sealed: every bit pattern is a value.
pub trait Plain: Sealed + Copy + Send + Sync + 'static {}

impl<T: Element> Plain for T {}

impl Plain for State {}
impl Plain for Report {}
impl Plain for Factor {}
impl Plain for Histogram {}
impl Sealed for State {}
impl Sealed for Report {}
impl Sealed for Factor {}
impl Sealed for Histogram {}

/// Values in the memory of a [`Device`]: the elements of a tensor, or the results of a call. Dropping the
/// buffer waits for the stream, except for a scaler's report: the scaler uses its memory again. If the driver
/// fails, copies return [`Status::DEVICE`].
#[derive(Debug)]
#[must_use]
pub struct DeviceBuffer<T: Plain> {
    block: Arc<Block>,
    count: usize,
    values: PhantomData<T>,
}

impl<T: Plain> DeviceBuffer<T> {
    /// Makes a copy of a slice.
    ///
    /// # Errors
    ///
    /// [`Status::MEMORY`]: the device has not enough memory; [`Status::DEVICE`]: the driver failed.
    pub fn from_slice(device: &Device, slice: &[T]) -> Result<Self> {
        let block = Block::new(device, size_of_val(slice))?;
        let mut buffer = Self::new(Arc::new(block), slice.len());
        buffer.copy_from_slice(slice)?;
        Ok(buffer)
    }

    /// Makes a buffer of `count` zeros.
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
        Ok(Self::new(Arc::new(block), count))
    }

    fn new(block: Arc<Block>, count: usize) -> Self {
        Self {
            block,
            count,
            values: PhantomData,
        }
    }

    /// Empties the buffer, and returns memory for `count` results of a call on this device and stream.
    fn make_room<C>(&mut self, device: &Device, count: usize) -> Result<*mut C> {
        let (size, block) = (count * size_of::<T>(), &self.block);
        let fits = block.device.id() == device.id() && block.device.stream == device.stream;
        if !fits || block.size < size {
            self.block = Arc::new(Block::new(device, size)?);
        }
        self.count = 0;
        Ok(self.block.data.cast())
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there is no value.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Waits, and copies all values from a slice of the same length.
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: another length.
    pub fn copy_from_slice(&mut self, slice: &[T]) -> Result<()> {
        self.same_length(slice)?;
        // SAFETY: values without padding.
        let bytes = unsafe { slice::from_raw_parts(slice.as_ptr().cast(), size_of_val(slice)) };
        self.block.device.write(self.block.data, bytes)
    }

    /// Waits, and copies all values to a slice of the same length.
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: another length.
    pub fn copy_to_slice(&self, slice: &mut [T]) -> Result<()> {
        self.same_length(slice)?;
        let (start, size) = (slice.as_mut_ptr().cast(), size_of_val(slice));
        // SAFETY: values without padding; every bit pattern is a value.
        let bytes = unsafe { slice::from_raw_parts_mut(start, size) };
        self.block.device.read(bytes, self.block.data)
    }

    fn same_length(&self, slice: &[T]) -> Result<()> {
        if slice.len() == self.count {
            return Ok(());
        }
        let message = format!("has {} elements, the buffer {}", slice.len(), self.count);
        Err(Error::new(Status::COUNT, "slice", message))
    }

    /// Waits, and copies all values.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        // SAFETY: zero bits are a value.
        let mut values = vec![unsafe { std::mem::zeroed::<T>() }; self.count];
        self.copy_to_slice(&mut values)?;
        Ok(values)
    }

    /// Waits, and returns the only value, such as a state or a report.
    ///
    /// # Errors
    ///
    /// [`Status::COUNT`]: the buffer has not one value.
    pub fn value(&self) -> Result<T> {
        // SAFETY: zero bits are a value.
        let mut value = unsafe { std::mem::zeroed::<T>() };
        self.copy_to_slice(slice::from_mut(&mut value))?;
        Ok(value)
    }

    /// Returns the address on the device, for kernels. Structs have the layout of C: a fused optimizer can
    /// read `found_inf` of a report.
    pub fn as_ptr(&self) -> *const c_void {
        self.block.data
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// Returns an entry for a list of inputs.
    pub fn tensor(&self) -> Tensor<'_, Device> {
        // SAFETY: memory of the device, borrowed as long as the result.
        unsafe { Tensor::from_raw::<T>(&self.block.device, self.block.data, self.count) }
    }

    /// Returns an entry for a list of outputs, or of tensors that are changed in place.
    pub fn tensor_mut(&mut self) -> TensorMut<'_, Device> {
        // SAFETY: likewise, and mutably.
        unsafe { TensorMut::from_raw::<T>(&self.block.device, self.block.data, self.count) }
    }
}

impl Tensor<'_, Device> {
    /// Makes an entry of memory that something else owns, such as a `CudaSlice` of cudarc.
    ///
    /// # Safety
    ///
    /// The device can read `count` elements there until the work that is enqueued is done, and
    /// nothing writes them meanwhile.
    pub unsafe fn from_raw<T: Element>(device: &Device, data: *const c_void, count: usize) -> Self {
        // SAFETY: as the caller promises.
        unsafe { Self::at::<T>(device.id(), data, count) }
    }
}

impl TensorMut<'_, Device> {
    /// Makes an entry of memory that something else owns, such as a `CudaSlice` of cudarc.
    ///
    /// # Safety
    ///
    /// The device can read and write `count` elements there until the work that is enqueued is
    /// done, and nothing else uses them meanwhile.
    pub unsafe fn from_raw<T: Element>(device: &Device, data: *mut c_void, count: usize) -> Self {
        // SAFETY: as the caller promises.
        unsafe { Self::of(Tensor::from_raw::<T>(device, data, count)) }
    }
}

impl Memory for Device {
    type State = DeviceBuffer<State>;
    type Report = DeviceBuffer<Report>;
    type Reports = DeviceBuffer<Report>;
    type Histogram = DeviceBuffer<Histogram>;
    type Events = ();
}

/// A device and a scaler's memory there, without its state.
#[derive(Debug)]
pub struct Handle {
    device: Device,
    /// The factor before the last update.
    factor_before: DeviceBuffer<Factor>,
    clipped_factor: DeviceBuffer<Factor>,
    /// The memory of all reports: the caller holds a second reference while the report lives.
    reports: Mutex<Vec<Arc<Block>>>,
    workspace: Mutex<Block>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Calls for Device {
    type Id = usize;
    type Handle = Handle;

    fn exec(handle: &Handle) -> sys::gsc_exec {
        handle.device.exec()
    }

    fn state(
        handle: &Handle,
        name: &str,
        state: &DeviceBuffer<State>,
    ) -> Result<*const sys::gsc_state> {
        handle.device.single_value(name, state)
    }

    fn state_mut(state: &mut DeviceBuffer<State>) -> *mut sys::gsc_state {
        state.block.data.cast()
    }

    fn report(handle: &Handle, report: &DeviceBuffer<Report>) -> Result<*const sys::gsc_report> {
        handle.device.single_value("report", report)
    }

    fn events(_: &DeviceBuffer<State>) {}

    fn keep_factor(handle: &Handle, state: &DeviceBuffer<State>) -> Result<()> {
        let (to, from) = (handle.factor_before.block.data, state.block.data);
        let (exec, size) = (handle.device.exec(), size_of::<Factor>() as u64);
        // SAFETY: two factors on the device, as a state starts with its factor.
        check(|err| unsafe { sys::gsc_memory_copy(&exec, to, from, size, err) })
    }

    fn call(
        handle: &Handle,
        tensors: &[Tensor<'_, Self>],
        out: &[Tensor<'_, Self>],
        mut options: Options<'_, Self>,
        call: impl FnOnce(&Arguments, *mut sys::gsc_error) -> sys::gsc_status,
    ) -> Result<DeviceBuffer<Report>> {
        let device = &handle.device;
        let list = device.raw_list("tensors", tensors)?;
        let is_in_place = out.as_ptr() == tensors.as_ptr();
        let other = (!is_in_place).then(|| device.raw_list("out", out));
        let other = other.transpose()?;
        if let Some(loss) = &options.loss {
            let raw = device.raw("options", loss);
            raw.map_err(|error| error.at("options", "loss"))?;
        }
        let n = list.len();
        let report = handle.new_report()?;
        let per_tensor = options.per_tensor.as_mut();
        let per_tensor = per_tensor.map(|reports| reports.make_room(device, n));
        let histogram = options.histogram.as_mut();
        let histogram = histogram.map(|histogram| histogram.make_room(device, 1));
        let mut workspace = lock(&handle.workspace);
        let mut arguments = Arguments {
            exec: device.exec(),
            tensors: list.as_ptr(),
            out: other.as_ref().unwrap_or(&list).as_ptr(),
            n: n as u64,
            options: options.raw(per_tensor.transpose()?, histogram.transpose()?),
            report: report.block.data.cast(),
        };
        let (a, mut size) = (&arguments, 0);
        // SAFETY: n entries, and options.
        check(|err| unsafe {
            sys::gsc_workspace_size(&a.exec, a.tensors, a.n, &a.options, &mut size, err)
        })?;
        if (workspace.size as u64) < size {
            *workspace = Block::new(device, size as usize)?;
        }
        arguments.exec.workspace = workspace.data;
        arguments.exec.workspace_size = workspace.size as u64;
        check(|err| call(&arguments, err))?;
        if let Some(reports) = options.per_tensor {
            reports.count = n;
        }
        if let Some(histogram) = options.histogram {
            histogram.count = 1;
        }
        Ok(report)
    }
}

impl Handle {
    /// Returns the memory of a report that was dropped, or new memory.
    fn new_report(&self) -> Result<DeviceBuffer<Report>> {
        let mut reports = lock(&self.reports);
        let free = reports
            .iter_mut()
            .position(|block| Arc::get_mut(block).is_some());
        let index = free.unwrap_or(reports.len());
        if free.is_none() {
            reports.push(Arc::new(Block::new(&self.device, Report::SIZE)?));
        }
        Ok(DeviceBuffer::new(reports[index].clone(), 1))
    }
}

impl Scaler {
    /// Returns a copy of this scaler in the memory of a device.
    ///
    /// Its calls only enqueue. They fail if a tensor, state or report is on another device
    /// ([`Status::VALUE`]), if there is not enough memory ([`Status::MEMORY`]), and if the driver fails
    /// ([`Status::DEVICE`]). If the device finds an error, the step is skipped; [`Report::status`] and
    /// [`State::status`] have the error.
    ///
    /// # Errors
    ///
    /// [`Status::MEMORY`], [`Status::DEVICE`].
    pub fn to_device(&self, device: &Device) -> Result<Scaler<Device>> {
        let factor = || DeviceBuffer::from_slice(device, &[self.factor()]);
        Ok(Scaler {
            policy: self.policy,
            state: DeviceBuffer::from_slice(device, &[self.state])?,
            memory: Handle {
                device: device.clone(),
                factor_before: factor()?,
                clipped_factor: factor()?,
                reports: Mutex::default(),
                workspace: Mutex::new(Block::new(device, 0)?),
            },
        })
    }
}

impl Scaler<Device> {
    /// Waits, and returns a copy of the scaler on the host, for example to save it.
    pub fn to_host(&self) -> Result<Scaler> {
        Ok(Scaler::of(self.policy, self.state.value()?))
    }

    /// Unscales gradients and clips them to a global norm, as torch.nn.utils.clip_grad_norm_ does. It takes
    /// two passes; the report is on the unclipped gradients.
    ///
    /// # Errors
    ///
    /// [`Status::VALUE`]: `max_norm` is not finite and above 0; otherwise as
    /// [`to_device`](Self::to_device) says.
    pub fn unscale_clipped<'a>(
        &mut self,
        tensors: &mut [TensorMut<'_, Device>],
        max_norm: f64,
        options: impl Into<Options<'a, Device>>,
    ) -> Result<DeviceBuffer<Report>> {
        let mut options = options.into().or_policy(&self.policy);
        options.want |= Want::NORM;
        let clamp = std::mem::take(&mut options.clamp);
        let report = self.measure(TensorMut::as_inputs(tensors), options)?;
        let (exec, factor) = (self.memory.device.exec(), self.state.block.data.cast());
        let (measured, out) = (report.block.data.cast(), self.clipped_factor());
        // SAFETY: the same stream makes the report first; a state starts with its factor.
        check(|err| unsafe {
            sys::gsc_factor_clip_grad_norm(&exec, factor, measured, max_norm, out, err)
        })?;
        let options = Options::default().clamp(clamp);
        let calls = self.calls_by_clipped_factor();
        let clipped = calls.in_place(UNSCALE_ONLY, tensors, options);
        clipped.map(|_| report)
    }

    /// Returns a factor that unscales the gradients of the last update, and clips them if the update did;
    /// see [`Factor::clip_outlier`]. A fused optimizer can read its `inverse_f32`, and `skip_f32` of the
    /// state as found_inf.
    pub fn guard_factor(&mut self) -> Result<&DeviceBuffer<Factor>> {
        let (exec, state) = (self.memory.device.exec(), self.state.block.data.cast());
        let (factor, out) = (
            self.memory.factor_before.block.data.cast(),
            self.clipped_factor(),
        );
        // SAFETY: two factors and a state in memory of the device.
        check(|err| unsafe { sys::gsc_factor_clip_outlier(&exec, factor, state, out, err) })?;
        Ok(&self.memory.clipped_factor)
    }

    /// Divides [measured](Self::measure) gradients by the scale from before the last update, and clips them
    /// if the update did, in one pass, without a report.
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
    /// let report = scaler.measure(&[grad.tensor()], Want::NONE)?; // the norm is 5
    /// scaler.update(&report)?;
    /// losses.update(&DeviceBuffer::from_slice(&device, &[Report::number(0.7)])?)?;
    /// scaler.combine_decisions(losses.state())?; // skips if one of them does
    /// scaler.unscale_guarded(&mut [grad.tensor_mut()], Want::NONE)?;
    /// // Step if State::skip_f32, which is also on the device, is 0.
    /// assert_eq!((grad.to_vec()?, scaler.state().value()?.skip()), (vec![1.2, 1.6], false));
    /// # Ok::<(), gradscaler::Error>(())
    /// ```
    pub fn unscale_guarded<'a>(
        &mut self,
        tensors: &mut [TensorMut<'_, Device>],
        options: impl Into<Options<'a, Device>>,
    ) -> Result<()> {
        let _ = self.guard_factor()?;
        let report = self
            .calls_by_clipped_factor()
            .in_place(UNSCALE_ONLY, tensors, options.into());
        report.map(drop)
    }

    /// As [`unscale_guarded`](Self::unscale_guarded), into other memory, which can have other dtypes.
    pub fn unscale_guarded_into<'a>(
        &mut self,
        tensors: &[Tensor<'_, Device>],
        out: &mut [TensorMut<'_, Device>],
        options: impl Into<Options<'a, Device>>,
    ) -> Result<()> {
        let _ = self.guard_factor()?;
        let report =
            self.calls_by_clipped_factor()
                .out_of_place(UNSCALE_ONLY, tensors, out, options.into());
        report.map(drop)
    }

    fn clipped_factor(&mut self) -> *mut sys::gsc_factor {
        self.memory.clipped_factor.block.data.cast()
    }

    fn calls_by_clipped_factor(&self) -> FactorIn<'_, Device> {
        let factor = self.memory.clipped_factor.block.data.cast();
        // SAFETY: a factor on the device, borrowed with the scaler.
        unsafe { FactorIn::new(&self.memory, factor) }
    }
}
