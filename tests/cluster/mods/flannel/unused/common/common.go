// Package common stands for the part of a cloud's SDK that flanneld is linked with. Its back end for that cloud is
// never chosen here, and the SDK is large: these are only the names that it uses.
package common

func StringPtr(v string) *string { return &v }

func BoolPtr(v bool) *bool { return &v }

func StringPtrs(values []string) []*string {
	pointers := make([]*string, len(values))
	for i := range values {
		pointers[i] = &values[i]
	}
	return pointers
}
