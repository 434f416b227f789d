package outbox_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	require.NoError(t, outbox.Check("a/b"))
	require.NoError(t, outbox.Check("a/b", nil, outbox.FieldErrors{}))
	err := outbox.Check("a/b", outbox.Text("x", "\xff"), nil, outbox.Min("y.z", 1, 2))
	require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
	require.EqualError(t, err, "validate a/b: x is not valid UTF-8; y.z is below 2")
	var invalid *outbox.ValidationError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, "a/b", invalid.Topic)
	require.Len(t, invalid.Fields, 2)
}

func TestEnum(t *testing.T) {
	t.Parallel()
	require.NoError(t, outbox.Enum("color", color("red"), "green", "red"))
	for _, bad := range []color{"", "RED", secret} {
		err := outbox.Enum("color", bad, "green", "red")
		require.EqualError(t, err, "validate color: the value is none of green, red")
		require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
	}
}

type inner struct{ errs outbox.FieldErrors }

func (i inner) Validate() error { return outbox.Check("inner", i.errs) }

func TestValidNests(t *testing.T) {
	t.Parallel()
	errs := outbox.Valid("outer", inner{outbox.FieldErrors{{Field: "a"}, {Field: "[1]"}, {Field: "b.c"}, {}}})
	paths := make([]string, len(errs))
	for i, e := range errs {
		paths[i] = e.Field
	}
	require.Equal(t, []string{"outer.a", "outer[1]", "outer.b.c", "outer"}, paths)
	require.Equal(t, "list[0].a", outbox.Each("list", []inner{{outbox.FieldErrors{{Field: "a"}}}}, outbox.Valid)[0].Field)
}

func ExampleValidationError() {
	err := outbox.Check("mini_chat/turn_finalized",
		outbox.MaxLen("model", "a-very-long-name", 8),
		outbox.Min("usage.input_tokens", int64(-1), 0),
	)
	var invalid *outbox.ValidationError
	if errors.As(err, &invalid) {
		for _, f := range invalid.Fields {
			fmt.Println(f.Field, f.Rule)
		}
	}
	fmt.Println(err)
	// Output:
	// model max_len
	// usage.input_tokens min
	// validate mini_chat/turn_finalized: model has 16 characters, at most 8 allowed; usage.input_tokens is below 0
}
