// SPDX-License-Identifier: MIT
// A CUDA device, emulated, gives the bits of the CPU: all public functions that take a gsc_exec.
#include "support.hpp"

extern "C" {
#include "emulation.h"
}

namespace {

/* The device, and memory on it that the host reaches through this alone. */
struct Device {
    uint64_t size; // left, of whole pages at first
    unsigned char *const memory;
    uint64_t used = 0;
    gsc_exec on = GSC_EXEC_INIT;

    explicit Device(uint64_t bytes = 1 << 20)
        : size((bytes | 0xffff) + 1), memory(emulated_memory(size))
    {
        REQUIRE(memory);
        emulated_reach(false);
        const gsc_cuda_options options = GSC_CUDA_OPTIONS_INIT;
        REQUIRE(gsc_context_create_cuda(&options, &on.context, nullptr) == GSC_OK);
    }
    ~Device()
    {
        gsc_context_destroy(on.context);
    }
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;

    /* `offset` bytes past a multiple of 256; the last has the device's memory end with it. */
    unsigned char *allocate(uint64_t bytes, uint64_t offset = 0, bool last = false)
    {
        unsigned char *at = memory + used + offset;
        if (last) {
            size = (size - bytes - offset) / 256 * 256;
            at = memory + size + offset;
            emulated.end = reinterpret_cast<uintptr_t>(at + bytes);
        } else {
            used += (bytes + offset + 255) / 256 * 256;
        }
        REQUIRE(used <= size);
        return at;
    }
    void write(void *to, const void *from, uint64_t bytes)
    {
        emulated_reach(true);
        if (bytes)
            std::memcpy(to, from, bytes);
        emulated_reach(false);
    }
    Bytes read(const void *from, uint64_t bytes)
    {
        emulated_reach(true);
        Bytes copy(static_cast<const unsigned char *>(from),
                   static_cast<const unsigned char *>(from) + bytes);
        emulated_reach(false);
        return copy;
    }
    template <class T> T *put(const T &value)
    {
        T *at = reinterpret_cast<T *>(allocate(sizeof value));
        write(at, &value, sizeof value);
        return at;
    }
    template <class T> T get(const T *from)
    {
        T value;
        std::memcpy(&value, read(from, sizeof value).data(), sizeof value);
        return value;
    }
    template <class T> T *put(const std::vector<T> &values)
    {
        T *at = reinterpret_cast<T *>(allocate(values.size() * sizeof(T)));
        write(at, values.data(), values.size() * sizeof(T));
        return at;
    }
    /* A workspace of what the call says it needs, and not a byte more. */
    void reserve(const std::vector<gsc_tensor> &list, const gsc_tensor_options *options = nullptr)
    {
        REQUIRE(gsc_workspace_size(&on, list.data(), list.size(), options, &on.workspace_size,
                                   nullptr) == GSC_OK);
        on.workspace = allocate(on.workspace_size);
        const Bytes garbage(on.workspace_size, 0xa5);
        write(on.workspace, garbage.data(), garbage.size());
    }
};

/* ---- operations ---- */

enum Operation { SCALE, CHECK, UNSCALE, ACCUMULATE };

struct Call {
    Operation operation;
    const gsc_factor *factor;
    gsc_tensor_options options; // each and histogram: anything but NULL is wanted
    bool reports;
};

gsc_status run(const gsc_exec *on, const Call &c, const std::vector<gsc_tensor> &in,
               const std::vector<gsc_tensor> &out, gsc_report *report, gsc_error *err)
{
    const uint64_t n = in.size();
    switch (c.operation) {
    case SCALE:
        return gsc_scale(on, c.factor, in.data(), out.data(), n, &c.options, report, err);
    case CHECK:
        return gsc_measure(on, c.factor, in.data(), n, &c.options, report, err);
    case UNSCALE:
        return gsc_unscale(on, c.factor, in.data(), out.data(), n, &c.options, report, err);
    default:
        return gsc_unscale_accumulate(on, c.factor, in.data(), out.data(), n, &c.options, report,
                                      err);
    }
}

uint32_t random_dtype(Random &random, bool complex)
{
    return complex ? GSC_COMPLEX64 + random.next() % 2
                   : dtypes[random.next() % std::size(dtypes)].dtype;
}

/* What the numbers of a tensor are like. */
enum Kind { ANY_BITS, GRADIENTS, RARELY_BAD, RARELY_LARGE, TINY, HUGE_ONES, MOSTLY_ZERO, KINDS };

Bytes numbers(Random &random, Kind kind, uint32_t dtype, uint64_t count)
{
    const Dtype &d = real(dtype);
    const uint64_t parts = count << is_complex(dtype);
    Bytes bytes(parts * d.size);
    std::vector<double> values(parts);
    const std::vector<uint64_t> special = special_bits(d);
    for (double &x : values) {
        const double unit = 2 * random.unit() - 1;
        x = kind == TINY        ? std::ldexp(unit, -d.bias / 2 - 20)
            : kind == HUGE_ONES ? std::ldexp(unit, d.bias / 2 + 3)
                                : std::ldexp(unit, static_cast<int>(random.next() % 12) - 6);
        if (kind == MOSTLY_ZERO && random.next() % 64)
            x = 0;
        if (kind == RARELY_LARGE && random.next() % 500 == 0)
            x = std::ldexp(unit, 20);
    }
    const gsc_tensor from = {values.data(), parts, GSC_F64, 0, {}};
    const gsc_tensor to = {bytes.data(), parts, d.dtype, 0, {}};
    REQUIRE(gsc_scale(nullptr, nullptr, &from, &to, 1, nullptr, nullptr, nullptr) == GSC_OK);
    for (uint64_t i = 0; i < parts; i++)
        if (kind == ANY_BITS)
            write_bits(d, bytes.data(), i,
                       random.next() % 4 ? random.next() : special[random.next() % special.size()]);
        else if (kind == RARELY_BAD && random.next() % 3000 == 0)
            write_bits(d, bytes.data(), i, special[random.next() % special.size()]);
    return bytes;
}

struct Shape {
    uint32_t in, out;
    uint64_t count;
    bool in_place;
    uint64_t in_offset, out_offset; // from an aligned address
    Kind kind = KINDS;              // any
};

/* The same call on host and device; all bytes of it, with some after each tensor, compared. After
 * one of the tensors there is nothing. */
void compare(Random &random, Call call, const std::vector<Shape> &shapes)
{
    constexpr uint64_t margin = 32;
    uint64_t bytes = 1 << 20;
    for (const Shape &s : shapes)
        bytes += 1024 + s.count * (gsc_dtype_size(s.in) + gsc_dtype_size(s.out) + 1);
    Device d(bytes);
    std::vector<Bytes> in_data, out_data;
    std::vector<gsc_tensor> in, out, device_in, device_out;
    const uint64_t last = random.next() % shapes.size();
    const bool last_is_in = shapes[last].in_place || random.next() % 2;
    for (uint64_t i = 0; i < shapes.size(); i++) {
        const Shape &s = shapes[i];
        const auto any = static_cast<Kind>(random.next() % KINDS);
        const Kind kind = s.kind == KINDS ? any : s.kind;
        const uint64_t size = s.count * gsc_dtype_size(s.out);
        in_data.push_back(numbers(random, kind, s.in, s.count));
        if (i != last || !last_is_in)
            in_data.back().resize(in_data.back().size() + margin, 0x5a);
        out_data.push_back(numbers(random, RARELY_BAD, s.out, s.count));
        if (i != last || last_is_in)
            out_data.back().resize(size + margin, 0x5a);
    }
    for (uint64_t i = 0; i < shapes.size(); i++) {
        const Shape &s = shapes[i];
        unsigned char *from = d.allocate(in_data[i].size(), s.in_offset, i == last && last_is_in);
        unsigned char *to = d.allocate(out_data[i].size(), s.out_offset, i == last && !last_is_in);
        d.write(from, in_data[i].data(), in_data[i].size());
        d.write(to, out_data[i].data(), out_data[i].size());
        in.push_back({in_data[i].data(), s.count, s.in, 0, {}});
        out.push_back({s.in_place ? in_data[i].data() : out_data[i].data(), s.count, s.out, 0, {}});
        device_in.push_back({from, s.count, s.in, 0, {}});
        device_out.push_back({s.in_place ? from : to, s.count, s.out, 0, {}});
    }
    /* Before the call what it is to write is garbage. */
    gsc_report garbage;
    std::memset(&garbage, 0xa5, sizeof garbage);
    const uint64_t n = shapes.size();
    std::vector<gsc_report> reports(n + 1, garbage); // of each, and of all
    std::vector<int64_t> histogram(GSC_HISTOGRAM_LENGTH, -1);
    gsc_report *reports_there = d.put(reports);
    int64_t *histogram_there = d.put(histogram);
    Call on_device = call;
    on_device.factor = call.factor ? d.put(*call.factor) : nullptr;
    if (call.options.per_tensor) {
        call.options.per_tensor = reports.data();
        on_device.options.per_tensor = reports_there;
    }
    if (call.options.histogram) {
        call.options.histogram = histogram.data();
        on_device.options.histogram = histogram_there;
    }
    d.reserve(device_in, &on_device.options);
    emulated.blocks = static_cast<emulated_order>(random.next() % 3);
    emulated.threads = static_cast<emulated_order>(random.next() % 3);
    const bool many = random.next() % 2;
    emulated.takes_many = many;
    gsc_error err;
    const uint64_t before = emulated.launches;
    REQUIRE(run(nullptr, call, in, out, call.reports ? &reports[n] : nullptr, &err) == GSC_OK);
    const gsc_status status = run(&d.on, on_device, device_in, device_out,
                                  call.reports ? reports_there + n : nullptr, &err);
    if (status != GSC_OK)
        FAIL(err.message);
    const uint64_t passes = call.operation == ACCUMULATE ? 2 : 1, a_launch = many ? 1356 : 162;
    CHECK(emulated.launches - before <= 2 + passes + (n + a_launch - 1) / a_launch);

    INFO("operation " << call.operation << " want " << call.options.want << " scale "
                      << (call.factor ? call.factor->scale : 0) << " clamp " << call.options.clamp
                      << " policy " << (call.options.policy != nullptr) << " tensors " << n);
    for (uint64_t i = 0; i <= n; i++) {
        INFO("report " << i);
        CHECK(same(d.get(reports_there + i), reports[i]));
    }
    const auto *const words = reinterpret_cast<const unsigned char *>(histogram.data());
    const Bytes counted(words, words + histogram.size() * sizeof histogram[0]);
    CHECK((d.read(histogram_there, counted.size()) == counted));
    if (call.options.per_tensor && call.reports) { // the report of all is that of each, merged
        gsc_report *merged = d.put(garbage);
        REQUIRE(gsc_report_merge(&d.on, reports_there, n, GSC_MERGE_SHARDS, call.options.policy,
                                 merged, &err) == GSC_OK);
        gsc_report expected = reports[n];
        expected.kind = GSC_REPORT_MERGED;
        CHECK(same(d.get(merged), expected));
    }
    for (uint64_t i = 0; i < shapes.size(); i++) {
        INFO("tensor " << i << ": " << shapes[i].in << " to " << shapes[i].out << " count "
                       << shapes[i].count << " in place " << shapes[i].in_place << " offsets "
                       << shapes[i].in_offset << " " << shapes[i].out_offset);
        CHECK((d.read(device_in[i].data, in_data[i].size()) == in_data[i]));
        if (!shapes[i].in_place)
            CHECK((d.read(device_out[i].data, out_data[i].size()) == out_data[i]));
    }
}

/* Not where it may be. */
template <class T> T *odd(T *pointer)
{
    return reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(pointer) + 4);
}

const double scales[] = {65536, 1, 3.7, 0x1p-8, 1e-39, 1e40, 3e-37, 0x1p60};

/* As of a state: gsc_factor_init refuses what a float cannot hold. */
gsc_factor factor_of(double scale, uint64_t serial)
{
    return {scale, 1 / scale, static_cast<float>(scale), static_cast<float>(1 / scale), serial};
}

Shape shape(Random &random, Operation operation, uint32_t in, uint32_t out, uint64_t count)
{
    const bool in_place =
        operation != ACCUMULATE && gsc_dtype_size(in) == gsc_dtype_size(out) && random.next() % 2;
    const auto offset = [&] { return random.next() % 2 ? 0 : random.next() % 17; };
    return {in, out, count, in_place, offset(), offset()};
}

/* Some are NULL in a call: what they point to is compare()'s. */
const gsc_policy *norm_policy()
{
    static gsc_policy policy = GSC_POLICY_INIT;
    policy.overflow_test = GSC_TEST_NORM;
    return &policy;
}

Call any_call(Random &random, Operation operation, const gsc_factor *factor)
{
    static gsc_report wanted;
    static int64_t wanted_too;
    const double clamps[] = {1, 3e-3, 448, 1e300, 0.1};
    const bool may_clamp = operation == SCALE || operation == UNSCALE;
    Call call = {operation, random.next() % 8 ? factor : nullptr, GSC_TENSOR_OPTIONS_INIT, false};
    call.reports = operation == ::CHECK || operation == ACCUMULATE || random.next() % 4;
    call.options.want = random.next() % 2 ? GSC_WANT_NORM | GSC_WANT_AMAX
                                          : static_cast<uint32_t>(random.next()) & want_all;
    call.options.policy = random.next() % 3 ? nullptr : norm_policy();
    call.options.clamp = may_clamp && random.next() % 3 == 0 ? clamps[random.next() % 5] : 0;
    call.options.per_tensor = random.next() % 2 ? &wanted : nullptr;
    call.options.histogram = random.next() % 2 ? &wanted_too : nullptr;
    return call;
}

} // namespace

TEST_CASE("an emulated device gives the bits of the CPU: every operation, pair and size")
{
    Random random = {1};
    const uint64_t counts[] = {0, 1, 3, 5, 63, 64, 65, 300, 4095, 4096, 4097, 65536, 65537};
    for (int operation = SCALE; operation <= ACCUMULATE; operation++)
        for (uint32_t in = 1; gsc_dtype_size(in); in++)
            for (uint32_t out = 1; gsc_dtype_size(out); out++) {
                if (is_complex(in) != is_complex(out))
                    continue;
                for (uint64_t count : counts) {
                    const gsc_factor factor = factor_of(scales[random.next() % 8], count);
                    const auto o = static_cast<Operation>(operation);
                    const uint32_t to = o == ::CHECK ? in : out;
                    compare(random, any_call(random, o, &factor),
                            {shape(random, o, in, to, count)});
                }
            }
}

TEST_CASE(
    "the short ways of every pair: finite rows, aligned or not, that round up, down and to even")
{
    Random random = {8};
    gsc_factor factors[2]; /* sums of products by 1 lie between two numbers now and then */
    REQUIRE(gsc_factor_init(3.7, &factors[0], nullptr) == GSC_OK);
    REQUIRE(gsc_factor_init(1, &factors[1], nullptr) == GSC_OK);
    Call calls[3];
    for (int i = 0; i < 3; i++) {
        calls[i] = {i == 2 ? ACCUMULATE : UNSCALE, nullptr, GSC_TENSOR_OPTIONS_INIT, true};
        calls[i].options.want = GSC_WANT_NORM | GSC_WANT_AMAX;
        calls[i].options.clamp = i == 1;
    }
    for (Call call : calls)
        for (uint32_t in = GSC_F32; in < GSC_COMPLEX64; in++)
            for (uint32_t out = GSC_F32; out < GSC_COMPLEX64; out++)
                for (const gsc_factor &factor : factors)
                    for (Kind kind : {GRADIENTS, RARELY_LARGE})
                        for (uint64_t elements = 0; elements < 2; elements++) {
                            call.factor = &factor;
                            compare(random, call,
                                    {{in, out, 9000, false, elements * gsc_dtype_size(in),
                                      elements * gsc_dtype_size(out), kind}});
                        }
}

TEST_CASE("lists of many tensors, of mixed dtypes and sizes, and of several chunks")
{
    Random random = {2};
    for (int round = 0; round < 160; round++) {
        const bool small = round >= 60;
        const auto operation = static_cast<Operation>(random.next() % 4);
        const uint64_t half = static_cast<uint64_t>(round) / 2;
        const uint64_t tensors = round < 8    ? 169 + half
                                 : round < 12 ? 1358 + half
                                              : 1 + random.next() % (small || round % 8 ? 12 : 400);
        std::vector<Shape> shapes;
        for (uint64_t i = 0; i < tensors; i++) {
            const bool complex = random.next() % 5 == 0;
            const uint32_t in = random_dtype(random, complex), out = random_dtype(random, complex);
            const uint64_t most = small ? 9000 : tensors > 12 ? 300 : 200000;
            const uint64_t count = random.next() % most;
            shapes.push_back(shape(random, operation, in, operation == ::CHECK ? in : out,
                                   random.next() % 9 ? count : 0));
        }
        const gsc_factor factor = factor_of(scales[random.next() % 8], 0);
        compare(random, any_call(random, operation, &factor), shapes);
    }
}

TEST_CASE("an empty list")
{
    gsc_report report = measured;
    const gsc_tensor_options options = wanting(want_all);
    Device d;
    gsc_report *on_device = d.put(gsc_report{});
    d.reserve({});
    REQUIRE(gsc_measure(&d.on, nullptr, nullptr, 0, &options, on_device, nullptr) == GSC_OK);
    CHECK(same(d.get(on_device), report));
    report.kind = GSC_REPORT_MERGED;
    REQUIRE(gsc_report_merge(&d.on, nullptr, 0, 0, nullptr, on_device, nullptr) == GSC_OK);
    CHECK(same(d.get(on_device), report));
}

TEST_CASE("more chunks and tensors than the device folds at a time")
{
    Device d(uint64_t{80} << 20);
    Bytes data(1030 * 65536);
    for (uint64_t i = 0; i < data.size(); i++)
        data[i] = static_cast<unsigned char>(i * i >> 5 & 0x7b); /* finite */
    unsigned char *at = d.allocate(data.size());
    d.write(at, data.data(), data.size());
    std::vector<gsc_tensor> host, there;
    for (uint64_t i = 0; i < 3000; i++) {
        const uint64_t count = i == 1500 ? data.size() : i % 5;
        host.push_back({data.data(), count, GSC_F8_E5M2, 0, {}});
        there.push_back({at, count, GSC_F8_E5M2, 0, {}});
    }
    gsc_report report, *on_device = d.put(gsc_report{});
    const gsc_tensor_options options = wanting(GSC_WANT_NORM);
    d.reserve(there);
    for (const bool many : {true, false}) {
        const uint64_t before = emulated.launches;
        emulated.takes_many = many;
        REQUIRE(gsc_measure(nullptr, nullptr, host.data(), 3000, &options, &report, nullptr) ==
                GSC_OK);
        REQUIRE(gsc_measure(&d.on, nullptr, there.data(), 3000, &options, on_device, nullptr) ==
                GSC_OK);
        CHECK(emulated.launches - before == (many ? 6 : 22));
        CHECK(same(d.get(on_device), report));
        host[1500].count = there[1500].count = 3; /* once is enough of what takes long */
    }
}

TEST_CASE("what is wrong on the device is said there, and nothing else is written")
{
    Random random = {5};
    Device d;
    const Bytes data = numbers(random, GRADIENTS, GSC_F32, 100);
    unsigned char *at = d.allocate(data.size());
    d.write(at, data.data(), data.size());
    const gsc_tensor tensor = {at, 100, GSC_F32, 0, {}};
    const gsc_factor zero = {};
    gsc_factor *factor = d.put(zero);
    gsc_report *report = d.put(gsc_report{}), *each = d.put(gsc_report{});
    int64_t *histogram = d.put(std::vector<int64_t>(GSC_HISTOGRAM_LENGTH, 7));
    gsc_tensor_options options = wanting(want_all);
    options.per_tensor = each;
    options.histogram = histogram;
    d.reserve({tensor});
    REQUIRE(gsc_unscale(&d.on, factor, &tensor, &tensor, 1, &options, report, nullptr) == GSC_OK);
    gsc_report expected = {};
    expected.status = GSC_ERROR_FACTOR;
    expected.overflow = 1; /* whoever reads this alone must not step */
    expected.found_inf = 1;
    CHECK(same(d.get(report), expected));
    CHECK(same(d.get(each), expected));
    for (uint32_t i = 0; i < GSC_HISTOGRAM_LENGTH; i++)
        CHECK(d.get(histogram + i) == 7);
    REQUIRE(gsc_scale(&d.on, factor, &tensor, &tensor, 1, nullptr, nullptr, nullptr) == GSC_OK);
    CHECK(d.read(at, data.size()) == data);

    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state, *out = d.put(gsc_state{});
    REQUIRE(gsc_policy_preset("recommended", &policy, nullptr) == GSC_OK);
    REQUIRE(gsc_state_init(nullptr, &policy, &state, nullptr) == GSC_OK);
    state.events = GSC_EVENT_GREW; /* of the update before */
    const auto updated = [&](const gsc_state &from, const gsc_report &by) {
        REQUIRE(gsc_state_update(&d.on, &policy, d.put(from), d.put(by), out, nullptr) == GSC_OK);
        return d.get(out);
    };
    const auto remade = [&](const gsc_state &from) {
        REQUIRE(gsc_state_init_from(&d.on, &policy, d.put(from), out, nullptr) == GSC_OK);
        return d.get(out);
    };
    const auto skipped = [](gsc_state s, gsc_status status) {
        s.status = status;
        s.events = GSC_EVENT_SKIPPED;
        s.skip = 1;
        s.skip_f32 = 1;
        s.guard_multiplier = 0;
        return s;
    };
    CHECK(same(updated(state, expected), skipped(state, GSC_ERROR_REPORT)));
    gsc_state negative_scale = state, negative_count = state, reserved_state = state;
    negative_scale.factor.scale = -1;
    CHECK(same(remade(negative_scale), skipped(negative_scale, GSC_ERROR_STATE)));
    negative_count.good_steps = -1;
    CHECK(same(updated(negative_count, measured), skipped(negative_count, GSC_ERROR_STATE)));
    reserved_state.reserved[17] = 42;
    CHECK(updated(reserved_state, measured).status == GSC_ERROR_STATE);
    CHECK(remade(reserved_state).status == GSC_ERROR_STATE);
    gsc_report reserved = measured;
    reserved.reserved[14] = 42;
    CHECK(updated(state, reserved).status == GSC_ERROR_REPORT);
    const gsc_state good = updated(state, measured);
    CHECK((good.status == GSC_OK && good.events == 0 && updated(good, measured).events == 0));

    /* Reserved words, and a verdict that cannot be given. */
    expected.status = GSC_ERROR_REPORT;
    REQUIRE(gsc_report_merge(&d.on, d.put(reserved), 1, 0, nullptr, report, nullptr) == GSC_OK);
    CHECK(same(d.get(report), expected));
    gsc_report without_norm = measured;
    without_norm.measured = GSC_WANT_AMAX;
    REQUIRE(gsc_report_merge(&d.on, d.put(without_norm), 1, 0, norm_policy(), report, nullptr) ==
            GSC_OK);
    CHECK(same(d.get(report), expected));

    gsc_factor *product = d.put(gsc_factor{1, 1, 1, 1, 1});
    REQUIRE(gsc_factor_multiply(&d.on, factor, 2, product, nullptr) == GSC_OK);
    CHECK(same(d.get(product), zero));
    product = d.put(gsc_factor{1, 1, 1, 1, 1});
    REQUIRE(gsc_factor_clip_grad_norm(&d.on, nullptr, report, 1, product, nullptr) == GSC_OK);
    CHECK(same(d.get(product), zero));
}

TEST_CASE("what the host can see is refused before anything is launched")
{
    Device d;
    unsigned char *at = d.allocate(64);
    const std::vector<gsc_tensor> list = {{at, 16, GSC_F32, 0, {}}};
    gsc_report *report = d.put(gsc_report{});
    d.reserve(list);
    const uint64_t before = emulated.launches;
    gsc_error err;
    const auto check = [&](gsc_exec on) {
        return gsc_measure(&on, nullptr, list.data(), 1, nullptr, report, &err);
    };
    const auto is_of = [&](const char *name, const char *field) {
        INFO(err.name << "." << err.field << ": " << err.message);
        return std::string(err.name) == name && std::string(err.field) == field;
    };
    gsc_exec on = d.on;
    on.workspace_size--;
    CHECK(check(on) == GSC_ERROR_CAPACITY);
    on = d.on;
    on.workspace = nullptr;
    CHECK(check(on) == GSC_ERROR_CAPACITY);
    on = d.on;
    on.workspace = at + 4;
    CHECK(check(on) == GSC_ERROR_VALUE);
    CHECK(is_of("exec", "workspace"));
    const gsc_tensor large = {at, uint64_t{1} << 50, GSC_F8_E5M2, 0, {}};
    uint64_t size;
    CHECK(gsc_workspace_size(&d.on, &large, 1, nullptr, &size, &err) == GSC_ERROR_COUNT);
    CHECK(err.argument == 1);

    /* What a kernel could only fail on, in a way that ends CUDA for the process. */
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_factor *factor = reinterpret_cast<gsc_factor *>(at), *odd_factor = odd(factor);
    gsc_state *state = reinterpret_cast<gsc_state *>(at), *odd_state = odd(state);
    gsc_report *odd_report = odd(report);
    const gsc_tensor *in = list.data();
    const auto refused = [&](gsc_status status, int argument, const char *name,
                             const char *field = "") {
        INFO(name << " at " << argument);
        CHECK(status == GSC_ERROR_VALUE);
        CHECK(err.argument == argument);
        CHECK(is_of(name, field));
    };
    const gsc_tensor_options *none = nullptr;
    refused(gsc_scale(&d.on, odd_factor, in, in, 1, none, report, &err), 1, "factor");
    refused(gsc_scale(&d.on, factor, in, in, 1, none, odd_report, &err), 6, "report");
    refused(gsc_measure(&d.on, factor, in, 1, none, odd_report, &err), 5, "report");
    refused(gsc_unscale(&d.on, factor, in, in, 1, none, odd_report, &err), 6, "report");
    refused(gsc_unscale_accumulate(&d.on, factor, in, in + 1, 0, none, odd_report, &err), 6,
            "report");
    gsc_tensor_options each = GSC_TENSOR_OPTIONS_INIT, histogram = GSC_TENSOR_OPTIONS_INIT;
    each.per_tensor = odd_report;
    histogram.histogram = reinterpret_cast<int64_t *>(odd_report);
    refused(gsc_measure(&d.on, factor, in, 1, &each, report, &err), 4, "options", "per_tensor");
    refused(gsc_unscale(&d.on, factor, in, in, 1, &each, report, &err), 5, "options", "per_tensor");
    refused(gsc_measure(&d.on, factor, in, 1, &histogram, report, &err), 4, "options", "histogram");
    refused(gsc_state_init(&d.on, &policy, odd_state, &err), 2, "out");
    refused(gsc_state_init_from(&d.on, &policy, odd_state, state, &err), 2, "from");
    refused(gsc_state_update(&d.on, &policy, odd_state, report, state, &err), 2, "state");
    refused(gsc_state_update(&d.on, &policy, state, odd_report, state, &err), 3, "report");
    refused(gsc_state_update(&d.on, &policy, state, report, odd_state, &err), 4, "out");
    refused(gsc_factor_multiply(&d.on, odd_factor, 2, factor, &err), 1, "factor");
    refused(gsc_factor_multiply(&d.on, factor, 2, odd_factor, &err), 3, "out");
    refused(gsc_report_merge(&d.on, odd_report, 1, 0, nullptr, report, &err), 1, "reports");
    refused(gsc_report_merge(&d.on, report, 1, 0, nullptr, odd_report, &err), 5, "out");
    refused(gsc_factor_clip_grad_norm(&d.on, odd_factor, report, 1, factor, &err), 1, "factor");
    refused(gsc_factor_clip_grad_norm(&d.on, factor, odd_report, 1, factor, &err), 2, "report");
    refused(gsc_factor_clip_grad_norm(&d.on, factor, report, 1, odd_factor, &err), 4, "out");
    refused(gsc_factor_clip_outlier(&d.on, odd_factor, state, factor, &err), 1, "factor");
    refused(gsc_factor_clip_outlier(&d.on, factor, odd_state, factor, &err), 2, "state");
    refused(gsc_factor_clip_outlier(&d.on, factor, state, odd_factor, &err), 3, "out");
    refused(gsc_state_combine_decisions(&d.on, odd_state, state, state, &err), 1, "state");
    refused(gsc_state_combine_decisions(&d.on, state, odd_state, state, &err), 2, "other");
    refused(gsc_state_combine_decisions(&d.on, state, state, odd_state, &err), 3, "out");
    CHECK(emulated.launches == before);
}

TEST_CASE("states move on the device as on the CPU, with the policy of every preset")
{
    Random random = {6};
    const char *name;
    for (uint32_t i = 0; (name = gsc_preset_name(i)); i++) {
        gsc_policy policy = GSC_POLICY_INIT;
        REQUIRE(gsc_policy_preset(name, &policy, nullptr) == GSC_OK);
        policy.growth_interval = policy.growth_interval ? 3 : 0;
        Device d;
        gsc_state state, *there = d.put(gsc_state{});
        gsc_report *report_there = d.put(gsc_report{});
        REQUIRE(gsc_state_init(nullptr, &policy, &state, nullptr) == GSC_OK);
        REQUIRE(gsc_state_init(&d.on, &policy, there, nullptr) == GSC_OK);
        INFO(name);
        for (int step = 0; step < 500 && same(d.get(there), state); step++) {
            const uint64_t luck = step < 150 ? 8 : step < 300 ? 1 : 50;
            gsc_report report = measured;
            report.overflow = random.next() % luck == 0;
            report.generation = random.next() % 9 ? state.factor.generation : 0;
            report.generation += random.next() % 9 == 0; /* stale */
            report.sum_squares = random.next() % 9 ? 1 : 1e300;
            report.amax = std::ldexp(random.unit(), static_cast<int>(random.next() % 40) - 20);
            d.write(report_there, &report, sizeof report);
            REQUIRE(gsc_state_update(nullptr, &policy, &state, &report, &state, nullptr) == GSC_OK);
            REQUIRE(gsc_state_update(&d.on, &policy, there, report_there, there, nullptr) ==
                    GSC_OK);
        }
        CHECK(same(d.get(there), state));
        for (const double scale : {384.3, 0.0, HUGE_VAL}) {
            state.factor.scale = scale;
            d.write(there, &state, sizeof state);
            REQUIRE(gsc_state_init_from(nullptr, &policy, &state, &state, nullptr) == GSC_OK);
            REQUIRE(gsc_state_init_from(&d.on, &policy, there, there, nullptr) == GSC_OK);
            CHECK(same(d.get(there), state));
        }
    }
}

TEST_CASE("a guard judges on the device as on the CPU, to the bit")
{
    Random random = {23};
    uint32_t seen = 0;
    for (int round = 0; round < 60; round++) {
        Device d;
        gsc_policy policy = GSC_POLICY_INIT;
        policy.init_scale = 1024;
        policy.growth_factor = 2;
        policy.growth_interval = 5;
        policy.guard_norm = round % 5 == 0 ? 3 * random.unit() : 0;
        policy.guard_ratio = round % 3 == 0 ? 1.5 + random.unit() : 0;
        policy.guard_sigmas = round % 3 == 0 ? 0 : 1 + 2 * random.unit();
        policy.guard_decay = random.unit();
        policy.guard_init_mean = round % 4 == 0 ? random.unit() : 0;
        policy.guard_warmup = random.next() % 10;
        policy.guard_max_in_a_row = random.next() % 6;
        policy.guard_sample = static_cast<uint32_t>(random.next() % 3);
        policy.guard_flags = static_cast<uint32_t>(random.next() % 256);
        if (!(policy.guard_flags & GSC_GUARD_CLIP))
            policy.guard_flags &= ~(GSC_GUARD_CLIP_PROGRESSIVE | GSC_GUARD_CLIP_TO_MEAN);
        policy.quirks = GSC_QUIRK_ALLOW_LOCKOUT;
        gsc_state state, other;
        REQUIRE(gsc_state_init(nullptr, &policy, &state, nullptr) == GSC_OK);
        other = state;
        const gsc_factor factor = state.factor;
        gsc_state *there = d.put(state), *other_there = d.put(other);
        gsc_report *report_there = d.put(gsc_report{});
        gsc_factor *factor_there = d.put(factor), *out_there = d.put(factor);
        for (int step = 0; step < 60; step++) {
            gsc_report report = measured;
            REQUIRE(gsc_report_from_number(random.unit() * (random.next() % 8 ? 1 : 40), &report,
                                           nullptr) == GSC_OK);
            if (random.next() % 10 == 0)
                report.sum_squares = random.next() % 2 ? HUGE_VAL : NAN;
            report.generation = state.factor.generation;
            d.write(report_there, &report, sizeof report);
            REQUIRE(gsc_state_update(nullptr, &policy, &state, &report, &state, nullptr) == GSC_OK);
            REQUIRE(gsc_state_update(&d.on, &policy, there, report_there, there, nullptr) ==
                    GSC_OK);
            seen |= state.events;
            REQUIRE(same(d.get(there), state));
            gsc_factor out = factor;
            gsc_state joined;
            if (gsc_factor_clip_outlier(nullptr, round % 2 ? &factor : nullptr, &state, &out,
                                        nullptr) != GSC_OK)
                out = {};
            REQUIRE(gsc_factor_clip_outlier(&d.on, round % 2 ? factor_there : nullptr, there,
                                            out_there, nullptr) == GSC_OK);
            REQUIRE(same(d.get(out_there), out));
            REQUIRE(gsc_state_combine_decisions(nullptr, &other, &state, &joined, nullptr) ==
                    GSC_OK);
            REQUIRE(gsc_state_combine_decisions(&d.on, other_there, there, other_there, nullptr) ==
                    GSC_OK);
            REQUIRE(same(d.get(other_there), joined));
            d.write(other_there, &other, sizeof other);
        }
    }
    CHECK((seen & GSC_EVENT_OUTLIER && seen & GSC_EVENT_CLIPPED && seen & GSC_EVENT_STOPPED));
}
