package payload_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/payload"
)

const secret = "S3CRET"

// TestChecks runs each check with valid and invalid values. No message may have the value.
func TestChecks(t *testing.T) {
	t.Parallel()
	digits := regexp.MustCompile(`^\d+$`)
	zone := func(seconds int) time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("", seconds)) }
	year := func(y int) time.Time { return time.Date(y, 6, 1, 0, 0, 0, 0, time.UTC) }
	for name, test := range map[string]struct {
		good []payload.FieldErrors
		bad  []payload.FieldErrors
		rule string
	}{
		"Text": {
			[]payload.FieldErrors{payload.Text("f", ""), payload.Text("f", "世界 �")},
			[]payload.FieldErrors{payload.Text("f", secret+"\xff"), payload.Text("f", secret+"\x00"), payload.Text("f", "\xed\xa0\x80")}, "utf8",
		},
		"MinLen": {
			[]payload.FieldErrors{payload.MinLen("f", "éé", 2), payload.MinLen("f", "", 0)},
			[]payload.FieldErrors{payload.MinLen("f", "é", 2), payload.MinLen("f", secret, 7)}, "min_len",
		},
		"MaxLen": {
			[]payload.FieldErrors{payload.MaxLen("f", "éé", 2), payload.MaxLen("f", "", 0)},
			[]payload.FieldErrors{payload.MaxLen("f", "ééé", 2), payload.MaxLen("f", secret, 5)}, "max_len",
		},
		"Match": {
			[]payload.FieldErrors{payload.Match("f", "12", digits)},
			[]payload.FieldErrors{payload.Match("f", secret, digits), payload.Match("f", "", digits)}, "pattern",
		},
		"Min": {
			[]payload.FieldErrors{payload.Min("f", int64(math.MinInt64), math.MinInt64), payload.Min("f", 0.5, 0.5), payload.Min("f", time.Second, time.Second)},
			[]payload.FieldErrors{payload.Min("f", int32(4), 5), payload.Min("f", 0.4, 0.5), payload.Min("f", time.Second-1, time.Second)}, "min",
		},
		"Max": {
			[]payload.FieldErrors{payload.Max("f", int64(math.MaxInt64), math.MaxInt64), payload.Max("f", 0.5, 0.5)},
			[]payload.FieldErrors{payload.Max("f", int32(6), 5), payload.Max("f", 0.6, 0.5)}, "max",
		},
		"Finite": {
			[]payload.FieldErrors{payload.Finite("f", 0), payload.Finite("f", math.MaxFloat64), payload.Finite("f", -math.SmallestNonzeroFloat64)},
			[]payload.FieldErrors{payload.Finite("f", math.NaN()), payload.Finite("f", math.Inf(1)), payload.Finite("f", math.Inf(-1))}, "float64",
		},
		"RequiredUUID": {
			[]payload.FieldErrors{payload.RequiredUUID("f", uuid.New()), payload.RequiredUUID("f", [16]byte{15: 1})},
			[]payload.FieldErrors{payload.RequiredUUID("f", uuid.Nil), payload.RequiredUUID("f", [16]byte{})}, "required",
		},
		"RequiredTime": {
			[]payload.FieldErrors{payload.RequiredTime("f", time.Unix(0, 0)), payload.RequiredTime("f", time.Time{}.Add(1))},
			[]payload.FieldErrors{payload.RequiredTime("f", time.Time{}), payload.RequiredTime("f", time.Time{}.Local())}, "required",
		},
		"Instant": {
			[]payload.FieldErrors{payload.Instant("f", time.Time{}), payload.Instant("f", year(0)), payload.Instant("f", year(9999)), payload.Instant("f", zone(-12*3600-60)), payload.Instant("f", zone(86340)), payload.Instant("f", zone(-86340))},
			[]payload.FieldErrors{payload.Instant("f", year(-1)), payload.Instant("f", year(10000)), payload.Instant("f", zone(24*3600)), payload.Instant("f", zone(-24*3600)), payload.Instant("f", zone(-25*3600)), payload.Instant("f", zone(3601))}, "timestamp",
		},
		"JSON": {
			[]payload.FieldErrors{payload.JSON("f", json.RawMessage(`null`)), payload.JSON("f", json.RawMessage(` {"a":[1]} `))},
			[]payload.FieldErrors{payload.JSON("f", nil), payload.JSON("f", json.RawMessage(secret)), payload.JSON("f", json.RawMessage(`{} {}`))}, "json",
		},
		"MinBytes": {[]payload.FieldErrors{payload.MinBytes("f", 2, 2)}, []payload.FieldErrors{payload.MinBytes("f", 1, 2)}, "min_len"},
		"MaxBytes": {[]payload.FieldErrors{payload.MaxBytes("f", 2, 2)}, []payload.FieldErrors{payload.MaxBytes("f", 3, 2)}, "max_len"},
		"MinItems": {[]payload.FieldErrors{payload.MinItems("f", 2, 2)}, []payload.FieldErrors{payload.MinItems("f", 1, 2)}, "min_len"},
		"MaxItems": {[]payload.FieldErrors{payload.MaxItems("f", 2, 2)}, []payload.FieldErrors{payload.MaxItems("f", 3, 2)}, "max_len"},
		"Valid": {
			[]payload.FieldErrors{payload.Valid("f", payload.Date{Year: 1, Month: 1, Day: 1})},
			[]payload.FieldErrors{payload.Valid("f", payload.Date{})}, "date",
		},
		"Valid with a foreign error": {
			[]payload.FieldErrors{payload.Valid("f", foreign{})},
			[]payload.FieldErrors{payload.Valid("f", foreign{errors.New(secret)})}, "type",
		},
	} {
		for _, errs := range test.good {
			require.Nil(t, errs, name)
		}
		for _, errs := range test.bad {
			require.Len(t, errs, 1, name)
			require.Equal(t, "f", errs[0].Field, name)
			require.Equal(t, test.rule, errs[0].Rule, name)
			require.NotContains(t, errs[0].Message, secret, name)
		}
	}
}

type foreign struct{ err error }

func (f foreign) Validate() error { return f.err }

func TestMessagesCount(t *testing.T) {
	t.Parallel()
	require.EqualError(t, payload.MinLen("f", "a", 2)[0], "f has 1 character, at least 2 needed")
	require.EqualError(t, payload.MaxItems("f", 3, 0)[0], "f has 3 items, at most 0 allowed")
	require.EqualError(t, payload.Max("f", 2*time.Hour, 90*time.Minute)[0], "f is above 1h30m0s")
}

func TestOptional(t *testing.T) {
	t.Parallel()
	require.Nil(t, payload.Optional("f", nil, payload.Text))
	require.Nil(t, payload.Optional("f", pointer("x"), payload.Text))
	require.Len(t, payload.Optional("f", pointer("\xff"), payload.Text), 1)
	require.Nil(t, payload.IfAny(0, payload.MinItems("f", 0, 1)))
	require.Len(t, payload.IfAny(1, payload.MinItems("f", 1, 2)), 1)
	require.Nil(t, payload.All(nil, nil))
	require.Len(t, payload.All(payload.Text("f", "\xff"), nil, payload.MinLen("f", "\xff", 2)), 2)
}

func TestEach(t *testing.T) {
	t.Parallel()
	require.Nil(t, payload.Each("f", nil, payload.Text))
	errs := payload.Each("f", []string{"a", "\xff", "b", "\x00"}, payload.Text)
	require.Equal(t, payload.FieldErrors{
		{Field: "f[1]", Rule: "utf8", Message: "is not valid UTF-8"},
		{Field: "f[3]", Rule: "utf8", Message: "has a NUL byte"},
	}, errs)
	nested := payload.Each("f", [][]string{nil, {"\xff"}}, payload.EachIn(payload.Text))
	require.Equal(t, "f[1][0]", nested[0].Field)
	many := payload.Each("f", strings.Split(strings.Repeat("\xff,", 100), ","), payload.Text)
	require.Len(t, many, 8, "only the first eight are reported")
}

// TestEachValue runs often, because the order of a map is random and the order of the result must not be.
func TestEachValue(t *testing.T) {
	t.Parallel()
	entries := map[string]string{"a\xff": "\xff", "b\x00": "x", "\xffc": "\x00", secret: "\xff"}
	want := payload.EachValue("f", entries, payload.Text)
	require.Equal(t, []string{"f[*]", "f[*].key"}, []string{want[0].Field, want[1].Field})
	require.Len(t, want, 2)
	for range 50 {
		require.Equal(t, want, payload.EachValue("f", entries, payload.Text))
	}
	require.NotContains(t, fmt.Sprint(want), secret)
	require.Nil(t, payload.EachValue("f", map[string]int{"a": 1}, payload.AnyValue))
	nested := payload.EachValue("f", map[string]map[string]string{"a": {"b": "\xff"}}, payload.EachValueIn(payload.Text))
	require.Equal(t, "f[*][*]", nested[0].Field)
	rules := payload.EachValue("f", map[string]int{"a": 1}, func(field string, _ int) payload.FieldErrors {
		return payload.FieldErrors{{Field: field, Rule: "one"}, {Field: field, Rule: "two"}}
	})
	require.Len(t, rules, 2, "each rule is reported")
	many := payload.EachValue("f", map[string]int{"a": 1}, func(string, int) (errs payload.FieldErrors) {
		for n := range 20 {
			errs = append(errs, payload.FieldError{Field: fmt.Sprint("part", n)})
		}
		return errs
	})
	require.Len(t, many, 8, "only the first eight are reported")
}

func TestChecksDoNotAllocate(t *testing.T) { // counts allocations
	tags := []string{"a", "b"}
	day := payload.Date{Year: 2026, Month: 1, Day: 1}
	note, now := "n", time.Now()
	allocs := testing.AllocsPerRun(100, func() {
		err := payload.Check("a/b",
			payload.Text("note", note),
			payload.MaxLen("note", note, 10),
			payload.Optional("maybe", &note, payload.Text),
			payload.Each("tags", tags, payload.Text),
			payload.Min("n", int64(3), 0),
			payload.Valid("day", day),
		)
		if err != nil {
			panic(err)
		}
	})
	require.LessOrEqual(t, allocs, 0.0)
	allocs = testing.AllocsPerRun(100, func() {
		var c payload.Checks
		c.Text("note", note)
		c.MaxLen("note", note, 10)
		c.RequiredTime("at", now)
		c.Add(payload.Optional("maybe", &note, payload.Text))
		c.Add(payload.Valid("day", day))
		if err := c.Err("a/b"); err != nil {
			panic(err)
		}
	})
	require.LessOrEqual(t, allocs, 0.0)
}

// TestMethodsOfChecksFindWhatTheFunctionsFind: each method finds what the function of its name finds, in the order of the calls.
func TestMethodsOfChecksFindWhatTheFunctionsFind(t *testing.T) {
	t.Parallel()
	re := regexp.MustCompile("^a$")
	var c payload.Checks
	require.NoError(t, c.Err("a/b"))
	c.Text("text", "\xff")
	c.MinLen("min", "", 1)
	c.MaxLen("max", "ab", 1)
	c.Match("match", "b", re)
	c.Finite("finite", math.NaN())
	c.RequiredUUID("id", [16]byte{})
	c.RequiredTime("time", time.Time{})
	c.Instant("instant", time.Time{}.AddDate(20_000, 0, 0))
	c.JSON("json", nil)
	c.Add(nil)
	c.Add(payload.Min("n", 1, 2))
	err := c.Err("a/b")
	require.Equal(t, payload.Check("a/b",
		payload.Text("text", "\xff"), payload.MinLen("min", "", 1), payload.MaxLen("max", "ab", 1), payload.Match("match", "b", re),
		payload.Finite("finite", math.NaN()), payload.RequiredUUID("id", [16]byte{}), payload.RequiredTime("time", time.Time{}),
		payload.Instant("instant", time.Time{}.AddDate(20_000, 0, 0)), payload.JSON("json", nil), payload.Min("n", 1, 2)), err)
	var invalid *payload.ValidationError
	require.ErrorAs(t, err, &invalid)
	require.Len(t, invalid.Fields, 10)
}

// pointer returns a pointer to a copy of v.
func pointer[T any](v T) *T { return &v }
