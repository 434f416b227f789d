// Package isnil recognizes arguments that are nil, including an interface that contains a nil pointer.
package isnil

import "reflect"

// Is reports whether v is nil, or an interface that contains a nil pointer, map, channel or function. A method call on
// such a value would usually panic. Is allocates nothing.
func Is(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Chan, reflect.Func:
		return r.IsNil()
	}
	return false
}
