/* Functions that this code base does not use; included last, by our own .c files only. */
#pragma once

/* With _FORTIFY_SOURCE the C library makes macros of some of them for compilers that lack its
 * inline functions; a name must not be one when it is poisoned. */
#undef strcpy
#undef strcat
#undef sprintf
#undef vsprintf
#undef strncpy
#undef strncat

#pragma GCC poison strcpy strcat sprintf vsprintf strncpy strncat strtok atoi atol atoll sscanf gets
#pragma GCC poison system popen getaddrinfo gethostbyname
