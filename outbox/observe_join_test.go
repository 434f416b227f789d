package outbox_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// TestJoinObservers joins observers that have all functions, through reflection so that a new function is not forgotten.
func TestJoinObservers(t *testing.T) {
	t.Parallel()
	var told []string
	observer := func(name string) *outbox.Observer {
		o := &outbox.Observer{}
		for i := range reflect.ValueOf(o).Elem().NumField() {
			field, fn := reflect.TypeFor[outbox.Observer]().Field(i), reflect.ValueOf(o).Elem().Field(i)
			fn.Set(reflect.MakeFunc(fn.Type(), func(args []reflect.Value) []reflect.Value {
				told = append(told, name+"."+field.Name)
				if fn.Type().NumOut() == 1 { // Enqueuing
					return []reflect.Value{reflect.ValueOf(context.WithValue(args[0].Interface().(context.Context), key(name), true))}
				}
				return nil
			}))
		}
		return o
	}
	joined := reflect.ValueOf(outbox.JoinObservers(observer("a"), nil, &outbox.Observer{}, observer("b"))).Elem()
	for i := range joined.NumField() {
		told = nil
		var args []reflect.Value
		of := joined.Field(i).Type()
		for n := range of.NumIn() {
			if in := of.In(n); in == reflect.TypeFor[context.Context]() {
				args = append(args, reflect.ValueOf(t.Context()))
			} else {
				args = append(args, reflect.Zero(in))
			}
		}
		name := joined.Type().Field(i).Name
		results := joined.Field(i).Call(args)
		require.Equal(t, []string{"a." + name, "b." + name}, told)
		for _, ctx := range results {
			require.NotNil(t, ctx.Interface().(context.Context).Value(key("a")))
			require.NotNil(t, ctx.Interface().(context.Context).Value(key("b")))
		}
	}
	require.Equal(t, outbox.Observer{}, *outbox.JoinObservers(nil, &outbox.Observer{}), "nil functions stay nil: they cost nothing")
}

type key string
