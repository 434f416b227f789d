package outbox_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

// TestNoGenericTypeIsReached checks that a package which mentions the types of an enqueue does not compile generic types
// of others: the compiler makes all methods of those that fields and signatures lead to. "reflect.Type" has some of its own.
func TestNoGenericTypeIsReached(t *testing.T) {
	t.Parallel()
	seen := make(map[reflect.Type]bool)
	var visit func(of reflect.Type, path string)
	visit = func(of reflect.Type, path string) {
		if seen[of] || of.PkgPath() == "reflect" {
			return
		}
		seen[of] = true
		path += " > " + of.String()
		require.NotContains(t, of.Name(), "[", path)
		require.NotContains(t, of.PkgPath(), "pgxpool", path)
		require.False(t, strings.HasSuffix(of.PkgPath(), "internal/postgres/queries"), path)
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			visit(of.Elem(), path)
		case reflect.Struct:
			for i := range of.NumField() {
				visit(of.Field(i).Type, path)
			}
		case reflect.Func:
			for i := range of.NumIn() {
				visit(of.In(i), path)
			}
			for i := range of.NumOut() {
				visit(of.Out(i), path)
			}
		}
		for i := range of.NumMethod() {
			visit(of.Method(i).Type, path)
		}
	}
	visit(reflect.TypeFor[*outbox.UntypedTopic](), "")
	require.True(t, seen[reflect.TypeFor[*outbox.PendingReceipt]()])
}
