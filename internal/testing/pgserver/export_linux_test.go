package pgserver

var MemoryParent = memoryParent
