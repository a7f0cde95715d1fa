// SPDX-License-Identifier: MIT
// Outputs that share memory with other entries: cases by hand, and random lists against a
// comparison of all pairs.
#include <optional>

#include "support.hpp"

namespace {

using List = std::vector<gsc_tensor>;

/* Memory that nobody reads. */
gsc_tensor at(uintptr_t offset, uint64_t count, uint32_t dtype = GSC_F32)
{
    return {reinterpret_cast<void *>(4096 + offset), count, dtype, 0, {}};
}

/* Returns "out[1] out[0]", the entry and the output that shares its memory, or "". */
std::string overlap(const List &in, const std::optional<List> &out = {})
{
    const uint64_t n = in.size(), guard = 0x5a5a;
    std::vector<uint64_t> scratch(2 * n + 1, guard);
    const List before = in;
    const gsc_tensor *outputs = out ? out->data() : in.data();
    gsc_error err;
    const gsc_status status =
        gsc_tensors_check_overlap(in.data(), outputs, n, scratch.data(), 2 * n, &err);
    REQUIRE(err.status == status);
    REQUIRE(scratch[2 * n] == guard);
    REQUIRE(gsc_tensors_check_overlap(in.data(), outputs, n, scratch.data(), 2 * n, nullptr) ==
            status);
    REQUIRE((n == 0 || std::memcmp(in.data(), before.data(), n * sizeof(gsc_tensor)) == 0));
    if (status == GSC_OK)
        return "";
    REQUIRE(status == GSC_ERROR_OVERLAP);
    const std::string entry = std::string(err.name) + "[" + std::to_string(err.index) + "]";
    const std::string other = std::string(out ? "out" : "tensors") + "[" +
                              std::to_string(static_cast<uint64_t>(err.value)) + "]";
    const bool is_output = std::string(err.name) == "out";
    CHECK(err.argument == is_output);
    CHECK_WORDING(std::string(err.message) ==
                  entry + " shares memory with " + other + ": it would be written " +
                      (out && !is_output ? "before it is read" : "twice"));
    CHECK(err.subject_length == entry.size() + 1);
    return entry + " " + other;
}

bool share(const gsc_tensor &a, const gsc_tensor &b)
{
    const uintptr_t p = reinterpret_cast<uintptr_t>(a.data),
                    q = reinterpret_cast<uintptr_t>(b.data);
    const uint64_t p_size = a.count * gsc_dtype_size(a.dtype),
                   q_size = b.count * gsc_dtype_size(b.dtype);
    return p_size > 0 && q_size > 0 && p < q + q_size && q < p + p_size;
}

/* All overlaps, in the words of overlap(). */
std::vector<std::string> overlaps(const List &in, const std::optional<List> &out)
{
    const List &outputs = out ? *out : in;
    const std::string name = out ? "out[" : "tensors[";
    std::vector<std::string> found;
    for (size_t i = 0; i < in.size(); i++)
        for (size_t j = 0; j < in.size(); j++) {
            const auto add = [&](const std::string &list) {
                found.push_back(list + std::to_string(i) + "] " + name + std::to_string(j) + "]");
            };
            if (j < i && share(outputs[i], outputs[j]))
                add(name);
            if (out && i != j && share(in[i], outputs[j]))
                add("tensors[");
        }
    return found;
}

} // namespace

TEST_CASE("an output that shares memory with another entry is refused", "[overlap]")
{
    CHECK(overlap({at(0, 4), at(16, 4), at(32, 4)}, List{at(64, 4), at(80, 4), at(31, 4)}) ==
          "tensors[1] out[2]");
    CHECK(overlap({at(0, 4), at(0, 4)}, List{at(16, 4), at(32, 4)}) == ""); // inputs may
    CHECK(overlap({at(4, 0), at(0, 0)}, List{at(4, 0), at(4, 0)}) ==
          ""); // empty entries share nothing
    CHECK(overlap({at(0, 4), {nullptr, 0, GSC_F32, 0, {}}, at(16, 4)}) == "");
    CHECK(gsc_tensors_check_overlap(nullptr, nullptr, 0, nullptr, 0, nullptr) == GSC_OK);
    const uintptr_t end = UINTPTR_MAX - 4096;
    CHECK(overlap({at(end - 32, 4), at(end - 16, 4)}) == "");
    CHECK(overlap({at(end - 16, 4), at(end - 17, 4)}) == "tensors[1] tensors[0]");
}

TEST_CASE("random lists, as a comparison of all pairs finds", "[overlap]")
{
    Random random{1};
    uint64_t refused = 0;
    for (int round = 0; round < 6000; round++) {
        /* One in 500 is long, of a size that a sort may stumble over, with one overlap or two. */
        const bool is_long = round % 500 == 0;
        const uint64_t n = is_long ? 4097 >> random.next() % 11 : 1 + random.next() % 12,
                       room = is_long ? 10 * n * n : 8 + random.next() % 800;
        const auto list = [&](bool in_order) {
            List tensors;
            uintptr_t next = 0;
            for (uint64_t i = 0; i < n; i++) {
                const uint32_t dtype = 1 + static_cast<uint32_t>(random.next() % 9);
                const uint64_t count = random.next() % 6;
                const uintptr_t start = in_order ? next : random.next() % room;
                next = start + count * gsc_dtype_size(dtype);
                tensors.push_back(at(start, count, dtype));
            }
            return tensors;
        };
        const List in = list(random.next() % 2), out = list(random.next() % 2);
        /* The same memory as another list is not a call in place. */
        for (const std::optional<List> &outputs : {std::optional<List>(), {in}, {out}}) {
            const std::string found = overlap(in, outputs);
            const std::vector<std::string> all = overlaps(in, outputs);
            CAPTURE(round, n, found);
            REQUIRE(found.empty() == all.empty());
            REQUIRE((found.empty() || std::count(all.begin(), all.end(), found) == 1));
            refused += !found.empty();
        }
    }
    CHECK(refused > 3000);
    CHECK(refused < 15000);
}
