// The one translation unit of the embedded image.
#include "page_content.cu"
#include "page_copy.cu"
#include "page_copy_bulk.cu"
