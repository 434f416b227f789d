// Package absent tells arguments that are nil, in any disguise, from those that can be used.
package absent

import "reflect"

// Is reports whether v is nil, or an interface that holds a nil pointer, map, channel or function: a call of its methods
// would panic. It allocates nothing.
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
