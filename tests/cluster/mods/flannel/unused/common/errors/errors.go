// Package errors has the one type of the SDK's errors that flanneld names.
package errors

type TencentCloudSDKError struct{}

func (*TencentCloudSDKError) Error() string { return "this flanneld is built without the cloud's SDK" }
